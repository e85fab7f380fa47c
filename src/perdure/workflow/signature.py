"""`Signature`: encodes the arguments of a workflow or activity by its annotations, and decodes them."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from perdure.core.codec.codec import AnyDecoder, Codec, decoder_of
from perdure.core.codec.decoders import decoder_for
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, DecodeError

#: Types whose values survive JSON unchanged under any annotation.
_SAFE = frozenset({type(None), bool, int, float, str})


def names_at_decorator() -> Mapping[str, Any]:
    """Local names where a decorator is used, which annotations may mention; to be called by the decorator itself."""
    return sys._getframe(2).f_locals


def type_hints(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Resolve the annotations of a function. Raises `BadArguments` if a name in them is unknown."""
    plain = inspect.unwrap(function)
    names = dict(local_names or {})
    for name, cell in zip(
        getattr(getattr(plain, "__code__", None), "co_freevars", ()),
        getattr(plain, "__closure__", None) or (),
        strict=False,
    ):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # assigned later in the enclosing function
            continue
    try:
        return typing.get_type_hints(plain, localns=names or None, include_extras=True)
    except NameError as error:
        raise BadArguments(
            f"cannot resolve an annotation of {describe(plain)}: {error}; "
            "define the type at module level, or before the function that uses it"
        ) from error
    except TypeError:  # a callable without annotations of its own, such as a builtin
        return {}


def _needs_tags(codec: Codec, declared: Any, what: str) -> bool:
    try:
        return codec.needs_tags(declared, what)
    except DecodeError:
        return False  # reported when the value is decoded


def describe(function: Callable[..., Any]) -> str:
    """Name of a function for error messages."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', None) or brief(function)}"


class Signature:
    """Parameters of a workflow function without its leading `ctx`, or of an activity function."""

    def __init__(
        self, function: Callable[..., Any], local_names: Mapping[str, Any] | None = None, *, takes_context: bool = True
    ) -> None:
        self._function = function
        self._context = ""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise BadArguments(
                f"the parameters of {describe(function)} cannot be read; put it into a function of your own"
            ) from None
        if takes_context:
            if not parameters or parameters[0].kind not in (
                inspect.Parameter.POSITIONAL_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
            ):
                raise BadArguments(
                    f"{describe(function)} must take the Context as its first parameter: "
                    f"`{'async ' * inspect.iscoroutinefunction(function)}def "
                    f"{getattr(function, '__name__', 'workflow')}(ctx: Context, ...)`"
                )
            self._context = parameters[0].name
            parameters = parameters[1:]
        for parameter in parameters:
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                by_name = parameter.kind is inspect.Parameter.VAR_KEYWORD
                stars, instead = ("**", "dict[str, ...]") if by_name else ("*", "list[...]")
                raise BadArguments(
                    f"{describe(function)} takes {stars}{parameter.name}, but arguments are stored by name; "
                    f"write `{parameter.name}: {instead}` instead of `{stars}{parameter.name}`"
                )
        self._parameters = parameters
        self._signature = inspect.Signature(self._parameters)
        self._takes_names = all(p.kind is not inspect.Parameter.POSITIONAL_ONLY for p in self._parameters)
        self._has_defaults = any(p.default is not inspect.Parameter.empty for p in self._parameters)
        self._decoder: AnyDecoder | None = None
        #: JSON of the defaults that can be stored, by name of the parameter.
        self._stored_defaults: dict[str, str] | None = None
        #: Parameters whose values are stored with the names of their classes.
        self._tagged: list[str] | None = None
        self._local_names = dict(local_names or {})
        try:
            self._resolved: dict[str, Any] | None = type_hints(function, self._local_names)
        except BadArguments:
            self._resolved = None  # the type may be defined further down in the module; resolved again when needed

    @property
    def _hints(self) -> dict[str, Any]:
        if self._resolved is None:
            self._resolved = type_hints(self._function, self._local_names)
        return self._resolved

    @property
    def returns(self) -> Any:
        """Declared type of the result."""
        return self._hints.get("return", Any)

    @property
    def context(self) -> tuple[str, Any]:
        """Name and declared type of the context's parameter; `Any` where it is not declared or not defined yet."""
        return self._context, (self._resolved or {}).get(self._context, Any)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return tuple(parameter.name for parameter in self._parameters)

    @property
    def types(self) -> dict[str, Any]:
        """Declared types of the parameters, by name. Raises `BadArguments` if an annotation cannot be resolved."""
        return {parameter.name: self._hints.get(parameter.name, Any) for parameter in self._parameters}

    def resolve(self) -> None:
        """Resolve all annotations now. Raises `BadArguments`."""
        _ = self._hints

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Bind arguments to parameters; returns them by name. Raises `BadArguments`."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise BadArguments(f"{what}: {error}; it takes {self._signature}") from error

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, completed by the function's defaults; used to compute keys."""
        return {
            p.name: arguments.get(p.name, p.default)
            for p in self._parameters
            if p.name in arguments or p.default is not inspect.Parameter.empty
        }

    def encode(self, arguments: Mapping[str, Any], codec: Codec, what: str) -> str:
        """Encode arguments as a JSON object with defaults filled in; checks that decoding gives them back."""
        hints, given = self._hints, dict(arguments)
        if self._tagged is None:
            self._tagged = [name for name, hint in hints.items() if name != "return" and _needs_tags(codec, hint, what)]
        for name in self._tagged:
            if name in given:
                given[name] = codec.tagged(given[name], hints[name], what)
        payload = self._filled(codec.encode(given, what), arguments, codec)
        try:
            decoded = self.decode(payload, codec, what)
        except DecodeError as error:
            raise BadArguments(
                f"{error}; the arguments do not fit the declared parameters {self._signature}"
            ) from error
        for name, value in arguments.items():
            if type(value) not in _SAFE:
                codec.compare(value, decoded[name], hints.get(name, Any), f"argument {name!r} of the {what}")
        return payload

    def decode(self, payload: str, codec: Codec, what: str) -> dict[str, Any]:
        """Decode arguments by name from a JSON object, or from an array by position. Raises `DecodeError`."""
        if self._decoder is None:
            self._decoder = self._make_decoder()
        try:
            found = self._decoder.decode(payload)
        except Exception:
            # One argument at a time: accepts arrays, and names the argument that is wrong.
            return self._with_defaults(self._decode_each(payload, codec, what), codec, what)
        arguments = {
            name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not msgspec.UNSET
        }
        return arguments if len(arguments) == len(self._parameters) else self._with_defaults(arguments, codec, what)

    def decode_quickly(self, payload: str) -> dict[str, Any] | None:
        """Decode arguments by name from a JSON object that has all of them; None if it needs all that `decode` does."""
        if self._decoder is None or self._has_defaults:
            return None
        try:
            return msgspec.structs.asdict(self._decoder.decode(payload))
        except Exception:
            return None

    def bound(self, arguments: dict[str, Any]) -> Callable[[object], Any]:
        """Return the function with arguments by name, to be called with the context."""
        if self._takes_names:
            return partial(self._function, **arguments)
        return lambda context: self.call(context, arguments)

    def _filled(self, payload: str, arguments: Mapping[str, Any], codec: Codec) -> str:
        """Append the JSON of missing defaults to the JSON of some arguments."""
        if len(arguments) == len(self._parameters):
            return payload
        missing = [
            f"{msgspec.json.encode(name).decode()}:{default}"
            for name, default in self.defaults(codec).items()
            if name not in arguments
        ]
        if not missing:
            return payload
        return f"{payload[:-1]}{',' if arguments else ''}{','.join(missing)}}}"

    def _with_defaults(self, arguments: dict[str, Any], codec: Codec, what: str) -> dict[str, Any]:
        """Add defaults to the arguments of a run that was started without them, freshly decoded for each run."""
        for name, default in self.defaults(codec).items():
            if name not in arguments:
                declared = self._hints.get(name, Any)
                arguments[name] = codec.decode(default, declared, f"{what}, default of {name!r}")
        return arguments

    def defaults(self, codec: Codec) -> dict[str, str]:
        """JSON of the defaults, as they were when first needed.

        A default that does not fit the declared type, such as a sentinel, is left to the function.
        """
        if self._stored_defaults is None:
            self._stored_defaults = {
                parameter.name: payload
                for parameter in self._parameters
                if parameter.default is not inspect.Parameter.empty
                and (payload := self._stored_default(parameter, codec)) is not None
            }
        return self._stored_defaults

    def _stored_default(self, parameter: inspect.Parameter, codec: Codec) -> str | None:
        declared, what = self._hints.get(parameter.name, Any), f"default of {parameter.name!r}"
        try:
            payload = codec.encode(parameter.default, what, declared)
            value = codec.decode(payload, declared, what)
            return payload if declared is not Any or bool(value == parameter.default) else None
        except Exception:
            return None

    def _make_decoder(self) -> AnyDecoder:
        """A decoder of all arguments at once; if a type cannot be part of one, a decoder that refuses everything."""
        hints = self._hints
        fields: list[Any] = []
        for p in self._parameters:
            declared = hints.get(p.name, Any)
            given = p.default is inspect.Parameter.empty or declared is Any
            field = (p.name, declared if given else declared | msgspec.UnsetType)
            fields.append(field if p.default is inspect.Parameter.empty else (*field, msgspec.UNSET))
        try:
            arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            return decoder_of(arguments)
        except Exception:
            return decoder_for(msgspec.defstruct("Nothing", [("perdure", int)]))

    def _decode_each(self, payload: str, codec: Codec, what: str) -> dict[str, Any]:
        raw = codec.decode(payload, dict[str, msgspec.Raw] | list[msgspec.Raw], what)
        if isinstance(raw, list):
            names = [parameter.name for parameter in self._parameters]
            if len(raw) > len(names):
                raise DecodeError(f"{what} has {len(raw)} positional arguments; it takes {self._signature}")
            raw = dict(zip(names, raw, strict=False))
        known = {parameter.name: parameter for parameter in self._parameters}
        if unknown := raw.keys() - known.keys():
            raise DecodeError(
                f"{what} has arguments {sorted(unknown)} that it does not take; it takes {self._signature}"
            )
        missing = [name for name, p in known.items() if p.default is inspect.Parameter.empty and name not in raw]
        if missing:
            raise DecodeError(f"{what} lacks the arguments {missing}; it takes {self._signature}")
        return {
            name: codec.decode(bytes(value), self._hints.get(name, Any), f"{what}, argument {name!r}")
            for name, value in raw.items()
        }

    def call(self, context: object, arguments: dict[str, Any]) -> Any:
        """Call the function with the context and with arguments by name."""
        if self._takes_names:
            return self._function(context, **arguments)
        args, kwargs = self.spread(arguments)
        return self._function(context, *args, **kwargs)

    def spread(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name, as positional and keyword arguments of the function."""
        if self._takes_names:
            return (), arguments
        bound = self._signature.bind_partial()
        bound.arguments.update({p.name: arguments[p.name] for p in self._parameters if p.name in arguments})
        return bound.args, bound.kwargs
