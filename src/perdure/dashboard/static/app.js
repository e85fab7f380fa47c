// Pages work without this file. It adds local times, keys, and live updates by one EventSource.
"use strict";
(() => {
  const root = document.documentElement;
  const two = (number) => String(number).padStart(2, "0");
  const clock = (time, digits) =>
    `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ` +
    [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(":") +
    (digits ? `.${String(time.getMilliseconds()).padStart(3, "0")}` : "");
  const localTimes = (where) => {
    for (const one of where.querySelectorAll("time[datetime]")) {
      const time = new Date(one.dateTime);
      if (one.dataset.local || Number.isNaN(time.getTime())) continue;
      one.dataset.local = "1";
      // A time to the second is in the reader's zone, and in UTC on hover; an age has both on hover.
      if ("exact" in one.dataset) {
        one.title = `${one.dateTime} (UTC)`;
        one.textContent = clock(time, one.dataset.exact);
        continue;
      }
      one.title = `${time.toLocaleString()} (${one.title || one.dateTime})`;
    }
  };
  localTimes(document);
  for (const one of document.querySelectorAll("nav.pages [aria-current], .tabs [aria-current]")) {
    one.parentElement.scrollLeft = one.offsetLeft - one.parentElement.offsetLeft - 16;
  }

  // keys
  const rows = () => [...document.querySelectorAll("tr[data-href]")];
  let current = -1;
  const select = (index) => {
    const all = rows();
    if (!all.length) return;
    current = Math.max(0, Math.min(all.length - 1, index));
    all.forEach((row, number) => row.classList.toggle("current", number === current));
    all[current].scrollIntoView({ block: "nearest" });
  };
  const follow = (selector) => document.querySelector(selector)?.click();
  // On the page of runs, an action is for the selected runs, or else for the row at which the keys are.
  const act = (name) => {
    const row = rows()[current];
    if (picked().length || document.querySelector("#bulk [name=all]")?.checked) follow(`#bulk button[value=${name}]`);
    else if (document.querySelector("#bulk") && row) window.location.assign(`${row.dataset.href}/${name}`);
    else follow(`[data-key=${name[0]}]`);
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/") { event.preventDefault(); document.querySelector("[data-search]")?.focus(); }
    else if (event.key === "j") select(current + 1);
    else if (event.key === "k") select(current - 1);
    else if (event.key === "x") toggle(rows()[current]?.querySelector("[name=run]"));
    else if (event.key === "Enter" && current >= 0 && event.target === document.body) {
      const row = rows()[current];
      if (row) window.location.assign(row.dataset.href);
    }
    else if (event.key === "?") document.querySelector("#help")?.showModal();
    else if (event.key === "c") act("cancel");
    else if (event.key === "r") act("retry");
    else if (event.key === "Escape") follow("[data-close]");
    else if (/^[1-9]$/.test(event.key)) document.querySelectorAll(".tabs a")[Number(event.key) - 1]?.click();
  });

  // selection of runs
  const boxes = () => [...document.querySelectorAll("input[name=run][form=bulk]")];
  const picked = () => boxes().filter((one) => one.checked);
  const form = document.querySelector("#bulk");
  const hint = form?.querySelector("[data-picked]");
  const hinted = [...(hint?.childNodes || [])];
  const count = () => {
    if (!form) return;
    const number = picked().length;
    const all = form.querySelector("[name=all]").checked;
    form.classList.toggle("on", number > 0 || all);
    if (number) hint.replaceChildren(`${number} selected ·`);
    else hint.replaceChildren(...hinted);
    form.querySelector("[data-compare]").hidden = number !== 2 || all;
    const page = document.querySelector("[data-pick-page]");
    page.checked = number > 0 && number === boxes().length;
    page.indeterminate = number > 0 && !page.checked;
  };
  const toggle = (box) => { if (box) { box.checked = !box.checked; anchor = box; count(); } };
  let anchor = null;
  document.addEventListener("click", (event) => {
    const box = event.target.closest?.("input[name=run][form=bulk]");
    if (!box) return;
    if (event.shiftKey && anchor?.isConnected) {
      const all = boxes();
      const [from, to] = [all.indexOf(anchor), all.indexOf(box)].sort((one, other) => one - other);
      for (const one of all.slice(from, to + 1)) one.checked = box.checked;
    }
    anchor = box;
    count();
  });
  document.querySelector("[data-pick-page]")?.addEventListener("change", (event) => {
    for (const one of boxes()) one.checked = event.target.checked;
    count();
  });
  form?.addEventListener("change", count);
  document.addEventListener("perdure:updated", count);
  window.addEventListener("pageshow", count);
  count();

  // completion of the query line: the word at the cursor is completed, by keys or by the pointer
  const line = document.querySelector("[data-complete]");
  if (line) {
    const words = [...document.querySelectorAll("#words option")].map((one) => one.value);
    const list = document.createElement("ul");
    list.id = "completions";
    list.className = "completions";
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Completions");
    list.hidden = true;
    line.after(list);
    for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", list.id]]) {
      line.setAttribute(name, value);
    }
    let chosen = -1;
    const word = () => {
      const before = line.value.slice(0, line.selectionStart);
      const start = before.search(/\S*$/);
      return [start, before.slice(start)];
    };
    const close = () => { list.hidden = true; chosen = -1; line.setAttribute("aria-expanded", "false"); line.removeAttribute("aria-activedescendant"); };
    const complete = (text) => {
      const [start, begun] = word();
      const rest = line.value.slice(start + begun.length);
      line.setRangeText(text + (rest.startsWith(" ") || /[:=]$/.test(text) ? "" : " "), start, start + begun.length, "end");
      close();
    };
    const mark = (index) => {
      const options = [...list.children];
      chosen = (index + options.length) % options.length;
      options.forEach((one, number) => one.setAttribute("aria-selected", String(number === chosen)));
      options[chosen].scrollIntoView({ block: "nearest" });
      line.setAttribute("aria-activedescendant", options[chosen].id);
    };
    const offer = () => {
      const [, begun] = word();
      const low = begun.toLowerCase();
      // A name first, and its values once it is complete.
      const names = [...new Set(words.map((one) => one.replace(/^([a-z]+:|attr\.[^=]*=).*/s, "$1")))];
      const known = /[:=]/.test(begun) ? words : names;
      const found = known.filter((one) => one.toLowerCase().startsWith(low) && one !== begun).slice(0, 12);
      if (!begun || !found.length) { close(); return; }
      list.replaceChildren(...found.map((text, number) => {
        const one = document.createElement("li");
        one.id = `completion-${number}`;
        one.setAttribute("role", "option");
        one.setAttribute("aria-selected", "false");
        one.textContent = text;
        one.addEventListener("mousedown", (event) => { event.preventDefault(); complete(text); offer(); });
        return one;
      }));
      chosen = -1;
      list.hidden = false;
      line.setAttribute("aria-expanded", "true");
    };
    line.addEventListener("input", offer);
    line.addEventListener("blur", close);
    line.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      if (event.key === "ArrowDown") { event.preventDefault(); mark(chosen + 1); }
      else if (event.key === "ArrowUp") { event.preventDefault(); mark(chosen - 1); }
      else if ((event.key === "Enter" && chosen >= 0) || (event.key === "Tab" && !event.shiftKey)) {
        event.preventDefault();
        complete(list.children[Math.max(0, chosen)].textContent);
        offer();
      } else if (event.key === "Escape") { event.stopPropagation(); close(); }
    });
  }

  document.querySelector("[data-help]")?.addEventListener("click", (event) => {
    event.preventDefault();
    document.querySelector("#help")?.showModal();
  });
  document.querySelector(".scrub input[type=range]")?.addEventListener("change", (event) => event.target.form.requestSubmit());

  // Ages go on between two updates.
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const coarse = (seconds) => {
    const at = units.findIndex(([size]) => seconds >= size);
    if (at < 0) return "0 s";
    const [size, unit] = units[at];
    const more = at < 2 ? Math.floor((seconds % size) / units[at + 1][0]) : 0;
    return `${Math.floor(seconds / size)} ${unit}${more ? ` ${more} ${units[at + 1][1]}` : ""}`;
  };
  window.setInterval(() => {
    for (const one of document.querySelectorAll("time[data-age]")) {
      const seconds = Math.round((Date.now() - new Date(one.dateTime).getTime()) / 1000);
      if (Number.isNaN(seconds)) continue;
      const text = seconds >= 1 ? `${coarse(seconds)} ago` : seconds <= -1 ? `in ${coarse(-seconds)}` : "now";
      if (one.textContent !== text) one.textContent = text;
    }
  }, 5000);

  // Live updates: the server draws each view once for all tabs, and sends it when it has changed.
  const light = document.querySelector(".live");
  const bar = document.querySelector(".connection");
  const source = root.dataset.stream;
  if (!source || !light || !window.EventSource) return;
  const status = (name) => {
    light.classList.toggle("on", name === "live");
    light.classList.toggle("lost", name === "lost");
    light.textContent = name === "lost" ? "connection lost" : name;
    if (bar) bar.hidden = name !== "lost";
  };
  const button = document.querySelector(".new-rows");
  const busy = () => document.querySelector("dialog[open], details.menu-holder[open]") !== null
    || document.activeElement?.closest("[data-live=all] input, [data-live] textarea, [data-live] select") != null
    || String(window.getSelection() || "") !== "";
  let pending = null;
  const show = () => {
    if (pending === null || document.hidden) return;
    if (busy()) { window.setTimeout(show, 1000); return; }
    const page = new DOMParser().parseFromString(pending, "text/html");
    pending = null;
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = page.getElementById(part.id);
      if (!other) continue;
      if (part.dataset.live === "rows") replaceRows(part, other);
      else if (part.innerHTML !== other.innerHTML) replace(part, other);
    }
    document.dispatchEvent(new Event("perdure:updated"));
  };
  // Elements that stay keep the focus, their scroll position and whatever a person opened or ticked.
  const kept = (name, element) => !(name === "open" && element.tagName === "DETAILS" && element.id)
    && !(name === "checked" && element.form?.id === "bulk");
  const replace = (part, other) => {
    Idiomorph.morph(part, [...other.childNodes], {
      morphStyle: "innerHTML", ignoreActiveValue: true,
      callbacks: {
        beforeAttributeUpdated: kept,
        // A form that a person has open stays as it is.
        beforeNodeMorphed: (old) => !(old instanceof Element && old.matches("details.edit[open]")),
      },
    });
    // What the server draws for all viewers has the token of none of them.
    for (const one of part.querySelectorAll("input[name=csrf]")) one.value = root.dataset.csrf;
    localTimes(part);
  };
  // Rows that are there change in place; new ones wait behind a button, so that nothing moves under the pointer.
  const replaceRows = (part, other) => {
    const known = new Map([...part.querySelectorAll("tr[id]")].map((row) => [row.id, row]));
    let fresh = 0;
    for (const row of other.querySelectorAll("tr[id]")) {
      const old = known.get(row.id);
      if (!old) { fresh += 1; continue; }
      if (old.innerHTML !== row.innerHTML) replace(old, row);
    }
    if (button) { button.hidden = fresh === 0; button.textContent = `${fresh} new`; }
  };
  button?.addEventListener("click", () => window.location.reload());
  let stream = null;
  let opened = false;
  const open = () => {
    if (stream) return;
    stream = new EventSource(opened ? `${source}&again=yes` : source);
    opened = true;
    stream.addEventListener("open", () => status("live"));
    stream.addEventListener("error", () => {
      status("lost");
      // A browser gives up after an answer that is no stream, such as that of a proxy whose server restarts.
      if (stream?.readyState === EventSource.CLOSED) { close(); window.setTimeout(() => { if (!document.hidden) open(); }, 5000); }
    });
    stream.addEventListener("view", (event) => { pending = JSON.parse(event.data).content; show(); });
  };
  const close = () => { stream?.close(); stream = null; };
  // A browser has few connections for all of its tabs, so a hidden one has none.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else { open(); show(); } });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  if (!document.hidden) open();
})();
