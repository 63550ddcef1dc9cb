"""What a section found: checks that hold or do not, and figures with the bounds that they must keep.

Everything is in the section's JSON file the moment it is known, so that a section that is cut short loses nothing. What
is printed is short: figures, and the checks that failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DETAIL_CHARACTERS = 500  # of a failed check on the terminal; the file has all of it


class Report:
    def __init__(self, section: str, path: Path) -> None:
        self._path = path
        self._document: dict[str, Any] = {"section": section, "ended": False, "checks": [], "figures": []}
        self._save()

    def expect(self, name: str, ok: bool, detail: object = "") -> bool:
        """Records a check. `detail` is shown where it failed."""
        self._document["checks"].append({"name": name, "ok": bool(ok), "detail": str(detail)})
        self._save()
        if not ok:
            print(f"  FAILED {name}: {str(detail)[-_DETAIL_CHARACTERS:]}", flush=True)
        return bool(ok)

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """A check that holds unless its block raises; the rest of the section goes on either way."""
        try:
            yield
        except AssertionError as error:
            self.expect(name, False, error or "assertion failed: " + _last_line(error))
        except Exception:
            self.expect(name, False, traceback.format_exc())
        else:
            self.expect(name, True)

    def figure(
        self, name: str, value: float, unit: str, *, below: float | None = None, at_least: float | None = None
    ) -> bool:
        """Records a figure, and whether it keeps its bound if it has one."""
        ok = (below is None or value < below) and (at_least is None or value >= at_least)
        bound = "" if below is None else f"< {below:g}"
        bound = bound if at_least is None else f">= {at_least:g}"
        self._document["figures"].append(
            {"name": name, "value": value, "unit": unit, "bound": bound or None, "ok": ok if bound else None}
        )
        self._save()
        verdict = "" if not bound else "ok" if ok else "FAILED"
        print(f"  {verdict:6} {name:58} {value:12.3f} {unit:4} {bound}", flush=True)
        return ok

    def note(self, text: str) -> None:
        self._document.setdefault("notes", []).append(text)
        self._save()
        print(f"         {text}", flush=True)

    def attach(self, name: str, data: Any) -> None:
        """Raw data for the file alone."""
        self._document.setdefault("data", {})[name] = data
        self._save()

    def end(self) -> None:
        self._document["ended"] = True
        self._save()

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._document, indent=1))
        os.replace(fresh, self._path)


def verdict_of(document: dict[str, Any]) -> tuple[int, int]:
    """How many checks and bounded figures of a section's file hold, and how many there are."""
    judged = [check["ok"] for check in document["checks"]]
    judged += [figure["ok"] for figure in document["figures"] if figure["ok"] is not None]
    return sum(judged), len(judged)


def _last_line(error: AssertionError) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].line} (line {frames[-1].lineno})" if frames else "?"
