"""Draws what the panels of dashboard.json ask, for those who have no Grafana at hand. It needs Matplotlib.

    python3 picture.py http://127.0.0.1:9090 300 dashboard.png     # the last 300 seconds
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, PercentFormatter
from PIL import Image  # comes with it

STEP = 5


def ask(server, expr, start, end):
    expr = expr.replace("$job", ".*").replace("$group", ".*").replace("$__rate_interval", "30s")
    query = urllib.parse.urlencode({"query": expr, "start": start, "end": end, "step": STEP})
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{query}") as reply:
        return json.load(reply)["data"]["result"]


def legend(form, labels):
    return re.sub(r"{{(\w+)}}", lambda m: labels.get(m[1], ""), form).strip() or "all"


def seconds(value, _):
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g}"


def main(server, span, file):
    with open("dashboard.json", encoding="utf-8") as f:
        panels = json.load(f)["panels"]
    end = time.time()
    start = end - float(span)
    colors = {}  # of groups, the same in all panels
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots((len(panels) + 1) // 2, 2, figsize=(13, 3.1 * len(panels) / 2), layout="constrained")
    for panel, ax in zip(panels, axes.flat):
        custom = panel["fieldConfig"]["defaults"]["custom"]
        for target in panel["targets"]:
            for series in ask(server, target["expr"], start, end):
                label = legend(target["legendFormat"], series["metric"])
                key = series["metric"].get("rlock_group", label)
                color = colors.setdefault(key, f"C{len(colors) % 10}")
                points = [(float(t) - start, float(v)) for t, v in series["values"] if v != "NaN"]
                dashed = label.startswith("p99") or label.endswith("grant") or label == "p5"
                ax.plot(*zip(*points), label=label, color=color, linestyle="--" if dashed else "-", linewidth=1.4)
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])[1:]:
            ax.axhline(step["value"], color="red", linewidth=1)
        if "scaleDistribution" in custom:
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if unit == "s":
            ax.yaxis.set_major_formatter(FuncFormatter(seconds))
        elif unit == "percentunit":
            ax.yaxis.set_major_formatter(PercentFormatter(1))
        elif unit == "ops":
            ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}/s"))
        ax.set_title(panel["title"], loc="left", fontweight="bold")
        ax.set_xlim(0, end - start)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 60:g} min"))
        ax.xaxis.set_major_locator(plt.MultipleLocator(60))
        ax.grid(alpha=0.25)
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.suptitle("The queries of dashboard.json, answered by Prometheus, drawn with Matplotlib", color="gray")
    figure.savefig(file, dpi=100)
    Image.open(file).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
