"""What our SVG drawings are made of: colours, style, rectangles, texts and the room that a text takes."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

# Okabe and Ito's palette: told apart with every common colour blindness. Further groups start over, so their names stand in the tooltips.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c")
CHARACTER = 0.6  # width of an average character, in font sizes; fonts differ, so texts get some room
ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML 1.0 can't hold

STYLE = """
text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',Arial,sans-serif;fill:#1b1f24}
.page{fill:#ffffff}.node{fill:#f6f8fa;stroke:#8c959f}.numa{fill:#ffffff;stroke:#c3cad1}.free{fill:none;stroke:#8c959f;stroke-dasharray:3 3}
.title{font-size:17px;font-weight:700}.name{font-size:13px;font-weight:700}.where{font-size:12px}.small{font-size:10px}.text{font-size:12px}
.soft{fill:#57606a}.rank{font-size:12px;font-weight:600}
.bad{stroke:#c4001d;stroke-width:2.5}.skip{stroke:#57606a;stroke-width:1.5;stroke-dasharray:3 2}
.hollow{fill:none}.banner{fill:#ffd33d}.alarm{font-size:13px;font-weight:700;fill:#1b1f24}.on-dark{fill:#ffffff}.on-light{fill:#000000}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.node{fill:#161b22;stroke:#6e7681}.numa{fill:#0d1117;stroke:#3d444d}
.free{stroke:#6e7681}.soft{fill:#9da7b3}.bad{stroke:#ff7b72}.skip{stroke:#e6edf3}.alarm{fill:#1b1f24}.on-dark{fill:#ffffff}.on-light{fill:#000000}}
""".replace("\n", "")


def rectangle(x: float, y: float, width: float, height: float, kind: str, *, radius: float, fill: str = "", tip: str = "") -> str:
    """A rectangle in pixels; ``kind`` is its class in :data:`STYLE`, ``tip`` its tooltip."""
    attributes = (f' class="{kind}"' if kind else "") + (f' fill="{fill}"' if fill else "")
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"{attributes}'
    return f"{shape}><title>{escaped(tip)}</title></rect>" if tip else f"{shape}/>"


def words(x: float, y: float, text: str, kind: str, *, anchor: str = "") -> str:
    """One line of text, its baseline at ``y``."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{f" text-anchor={quoteattr(anchor)}" if anchor else ""}>{escaped(text)}</text>'


def legal(text: str) -> str:
    """The text without what XML can not hold."""
    return ILLEGAL.sub("\ufffd", text)


def escaped(text: str) -> str:
    """The text as it may stand in an XML document."""
    return escape(legal(text))


def text_width(text: str, size: float) -> float:
    """Roughly how many pixels a text takes, ``size`` being the font's."""
    return len(text) * size * CHARACTER


def clip(text: str, room: float, size: float) -> str:
    """The text, shortened to ``room`` pixels."""
    most = max(1, int(room / (size * CHARACTER)))
    return text if len(text) <= most else text[: most - 1] + "…"


def is_light(color: str) -> bool:
    """Whether black reads better on the colour than white does (WCAG's contrast of relative luminances)."""
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    channels = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in (red, green, blue)]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05)
