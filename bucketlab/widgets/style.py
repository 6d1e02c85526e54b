"""The dashboard's own look. Colours follow JupyterLab's theme, light or dark."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """\
<style>
.bl-lab{--ink:var(--jp-content-font-color1,#1d2126);--soft:var(--jp-content-font-color2,#5b6470);
--line:var(--jp-border-color2,#d5d9de);--back:var(--jp-layout-color1,#fff);--tint:var(--jp-layout-color2,#f1f3f5);
color:var(--ink);border:1px solid var(--line);border-radius:8px;padding:12px 16px 14px;overflow:visible}
.bl-lab .widget-html,.bl-lab .widget-html-content{overflow:visible;height:auto;margin:0;min-width:0;
font:13px/1.45 var(--jp-content-font-family,system-ui,sans-serif)} .bl-lab .widget-html-content{width:100%}
.bl-lab-title{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 12px;margin:0} .bl-lab-title
b{font-size:15px}.bl-lab-title span{color:var(--soft)}
.bl-state{display:inline-flex;align-items:center;gap:7px;margin:0 0 0
6px;color:var(--soft);line-height:28px} .bl-state b{color:var(--ink)} .bl-state
i{width:9px;height:9px;border-radius:50%;background:#8b939c} .bl-state .running,.bl-state
.stepping{background:#009e73} .bl-state .paused,.bl-state .pausing,.bl-state
.stopping{background:#e69f00;border-radius:2px} .bl-state
.failed{background:#d55e00;border-radius:0;transform:rotate(45deg)} .bl-state .finished{background:#0072b2}
.bl-controls{align-items:center;flex-wrap:wrap;gap:2px;margin:6px 0 4px} .bl-controls
.jupyter-button{border-radius:5px} .bl-controls .jupyter-button:focus-visible{outline:2px solid
#d55e00;outline-offset:1px} .bl-tick{display:flex;flex-wrap:wrap;gap:4px 22px;margin:4px 0 8px;padding:7px 0
8px; border-top:1px solid var(--line);border-bottom:1px solid var(--line);color:var(--soft);
font-variant-numeric:tabular-nums;min-height:41px;box-sizing:content-box} .bl-tick
span{display:flex;flex-direction:column-reverse;min-width:62px;font-size:12px;line-height:1.3} .bl-tick
b{font-size:18px;color:var(--ink);font-weight:600} .bl-panel>h3{margin:10px 0
8px;font-size:14px;line-height:1.3;font-weight:600;color:var(--ink)} .bl-panel .bl-curve{max-width:520px}
.bl-scroll{max-height:420px;overflow:auto;scrollbar-gutter:stable} .bl-failed{margin:0 0 8px;padding:8px
12px;border:1px solid #d55e00;border-left-width:5px;border-radius:4px} .bl-failed
b{color:var(--ink)}.bl-empty{color:var(--soft);margin:0 0 8px} </style>"""
