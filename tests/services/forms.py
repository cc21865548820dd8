"""Forms of a page as a browser has them: filled by their labels, sent with all fields that the page has."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import httpx


@dataclass
class Field:
    """A field of a form; `value` is None for what is not sent: a check box that is not checked.

    `offered` is what a check box sends once it is checked.
    """

    name: str
    value: str | None
    label: str = ""
    offered: str = ""


@dataclass
class Form:
    """One form: its address, and its fields in their order."""

    action: str
    fields: list[Field] = field(default_factory=list)

    def fill(self, **texts: str) -> Self:
        """Enter texts into the fields with these labels, of which no other one has the name."""
        for label, text in texts.items():
            (labelled,) = [entry for entry in self.fields if entry.label.split()[:1] == [label]]
            assert [entry.name for entry in self.fields].count(labelled.name) == 1, f"two fields have one name: {label}"
            labelled.value = text
        return self

    def check(self, name: str, *values: str) -> Self:
        """Check boxes of a name, each by its value."""
        for value in values:
            (box,) = [entry for entry in self.fields if (entry.name, entry.offered) == (name, value)]
            box.value = value
        return self

    def send(self, http: httpx.Client) -> httpx.Response:
        """Send it, as its button does, and follow where that leads."""
        data: dict[str, list[str]] = {}
        for entry in self.fields:
            if entry.value is not None:
                data.setdefault(entry.name, []).append(entry.value)
        return http.post(str(http.base_url.join(self.action)), data=data, follow_redirects=True)


def find_form(html: str, action: str) -> Form:
    """Return the form of a page that goes to an address. Raises AssertionError where there is not just one."""
    reader = _FormReader()
    reader.feed(html)
    found = [form for form in reader.forms if form.action == action]
    assert len(found) == 1, f"{len(found)} forms of the page go to {action}"
    return found[0]


class _FormReader(HTMLParser):
    """Collect the forms of a page; labels stand before their fields, or around them."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._labels: dict[str, str] = {}
        """The texts of labels, by the ids of their fields."""
        self._by_id: dict[str, Field] = {}
        self._label, self._within = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(found.get("action", "")))
        elif tag == "label":
            self._label = found.get("for", "")
        elif tag in ("input", "textarea", "select") and self.forms:
            is_off = tag == "select" or (found.get("type") == "checkbox" and "checked" not in found)
            offered = found.get("value", "") if found.get("type") == "checkbox" else ""
            entry = Field(found.get("name", ""), None if is_off else found.get("value", ""), offered=offered)
            self.forms[-1].fields.append(entry)
            self._by_id[found.get("id", "")] = entry
            self._within = tag
        elif tag == "option":
            entry = self.forms[-1].fields[-1]
            if entry.value is None or "selected" in found:  # without one that is selected, the first one
                entry.value = found.get("value")
                self._within = "option" if entry.value is None else "select"

    def handle_data(self, data: str) -> None:
        if self._label:
            self._labels[self._label] = self._labels.get(self._label, "") + data
        elif self._within in ("textarea", "option") and self.forms:
            entry = self.forms[-1].fields[-1]
            entry.value = (entry.value or "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._label = ""
        elif tag in ("textarea", "option", "select"):
            self._within = ""
        elif tag == "form":
            for field_id, entry in self._by_id.items():
                entry.label = self._labels.get(field_id, "")
            self._by_id, self._labels = {}, {}
