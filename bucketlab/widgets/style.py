"""The dashboard's own look. Colours follow JupyterLab's theme, light or dark."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """\
<style>
.bl-lab{--ink:var(--jp-content-font-color1,#1d2126);--soft:var(--jp-content-font-color2,#5b6470);
--line:var(--jp-border-color2,#d5d9de);--back:var(--jp-layout-color1,#fff);
color:var(--ink);border:1px solid var(--line);border-radius:8px;padding:12px 18px 8px;overflow:visible}
.bl-lab .widget-html,.bl-lab .widget-html-content{overflow:visible;height:auto;margin:0;min-width:0;
font:13px/1.45 var(--jp-content-font-family,system-ui,sans-serif)}
.bl-lab .widget-html-content{width:100%}
.bl-lab-title{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 12px;margin:0}
.bl-lab-title b{font-size:15px}
.bl-lab-title span{color:var(--soft)}
.bl-controls{align-items:center;flex-flow:row wrap;gap:2px;margin:6px 0 4px}
.bl-controls .jupyter-button{border-radius:5px}
.bl-controls .jupyter-button:focus-visible{outline:2px solid #d55e00;outline-offset:1px}
.bl-state{display:inline-flex;align-items:center;gap:7px;margin:0 0 0 8px;color:var(--soft);line-height:28px}
.bl-state b{color:var(--ink)}
.bl-state i{flex:none;width:9px;height:9px;border-radius:50%;background:#8b939c}
.bl-state .running,.bl-state .stepping{background:#009e73}
.bl-state .paused,.bl-state .pausing,.bl-state .stopping{background:#e69f00;border-radius:2px}
.bl-state .finished{background:#0072b2}
.bl-state .failed{background:#d55e00;border-radius:0;transform:rotate(45deg)}
.bl-tick{display:flex;flex-wrap:wrap;gap:6px 26px;margin:4px 0 2px;padding:8px 0 9px;min-height:42px;
border:solid var(--line);border-width:1px 0;color:var(--soft);font-variant-numeric:tabular-nums}
.bl-tick span{display:flex;flex-direction:column-reverse;min-width:60px;font-size:12px;line-height:1.3}
.bl-tick b{font-size:18px;font-weight:600;color:var(--ink)}
.bl-lab .bl-columns{flex-flow:row wrap;gap:0 30px;width:100%;overflow:visible}
.bl-columns>.widget-vbox{flex:1 1 440px;min-width:0;max-width:100%;overflow:visible}
.bl-panel>h3{margin:14px 0 9px;font-size:14px;line-height:1.3;font-weight:600;color:var(--ink)}
.bl-lab .bl-panel .bl-m{min-width:60px;width:90px}
.bl-lab .bl-slices .bl-bar,.bl-lab .bl.bl-curve{max-width:none}
.bl-lab .bl-tiles div{flex:1 1 0;min-width:110px;padding:5px 11px 6px}
.bl-columns>.widget-vbox+.widget-vbox{flex-grow:1.2}
.bl-lab .bl-al td,.bl-lab .bl-al thead th{padding-right:5px!important}
.bl-lab .bl-al td b,.bl-lab .bl-al td i{min-width:26px;padding:0 3px}
.bl-scroll{max-height:860px;overflow:auto}
.bl-failed{margin:0 0 8px;padding:8px 12px;border:1px solid #d55e00;border-left-width:5px;border-radius:4px}
.bl-failed b{color:var(--ink)}
.bl-empty{color:var(--soft);margin:0 0 8px}
</style>"""
