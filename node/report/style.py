"""The style of a page of either report: on a screen light or dark, on paper black on white."""

from __future__ import annotations

STYLE = """\
:root{--ink:#16191d;--soft:#57606a;--paper:#fff;--panel:#f5f7f9;--rule:#cfd6dd;--grid:#e2e6ea;--accent:#0a4f9e;
--good:#1a6b34;--bad:#a3121f}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--paper:#101418;--panel:#181d23;
--rule:#3a434d;--grid:#2a313a;--accent:#7db8ff;--good:#5fc27e;--bad:#ff8085}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:2.5rem clamp(1rem,4vw,3rem) 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .5rem;text-wrap:balance}
h2{font-size:1.25rem;margin:2.6rem 0 .8rem;padding-top:.9rem;border-top:2px solid var(--ink)}
h3{font-size:1.02rem;margin:0 0 .4rem}
p{max-width:46rem;margin:.5rem 0}
.lead{font-size:1.08rem}
.note{color:var(--soft);font-size:.9rem}
.verdict{max-width:none;margin:1rem 0;padding:.55rem .8rem;border:1px solid var(--rule);
border-left:5px solid var(--soft)}
.verdict.good{border-left-color:var(--good)}.verdict.good strong{color:var(--good)}
.verdict.bad{border:2px solid var(--bad);border-left-width:5px}.verdict.bad strong{color:var(--bad)}
.facts{margin:.6rem 0;display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem}
.facts div{display:contents}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
header .facts{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1.2rem 0}
header .facts div{display:block}
header dt{font-size:.8rem}
header dd{font-weight:600}
.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
.change{margin:0 0 1.1rem;padding:.8rem 1rem;border:1px solid var(--rule);border-radius:.3rem}
.side{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}
.scroll{overflow-x:auto;max-width:100%;margin:.8rem 0}
.time{white-space:nowrap}
table{border-collapse:collapse;min-width:20rem;font-size:.88rem;font-variant-numeric:tabular-nums}
caption,figcaption{text-align:left;padding:0 0 .35rem;color:var(--soft);font-size:.9rem}
caption strong,figcaption strong{color:var(--ink)}
th,td{padding:.25rem .9rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom;border-bottom:1px solid var(--soft)}
tbody th{font-weight:600}
.number{text-align:right;white-space:nowrap}
thead .number{white-space:normal}
td{overflow-wrap:anywhere}
.sites td:last-child,.rounds td:last-child{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.78em;
color:var(--soft)}
.rounds td:nth-child(2),.rounds td:last-child{white-space:nowrap}
.rounds td:nth-child(4){width:40%}
.words td:nth-child(2),.words td:nth-child(3){white-space:nowrap}
.words th{max-width:16rem}
figure{margin:1rem 0}
svg{display:block;width:100%;height:auto}
svg text{font-family:inherit}
.wide{max-width:76rem}
.wide table{min-width:0}
.wide td{overflow-wrap:normal}
.results td{white-space:nowrap}
td small,.std,.absent{color:var(--soft)}
td small{display:block;font-size:.85em}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;padding:0;list-style:none}
a,summary{color:var(--accent)}
summary{cursor:pointer;width:fit-content}
footer{margin-top:2.5rem;padding-top:.6rem;border-top:1px solid var(--rule);color:var(--soft);font-size:.85rem}
@page{size:A4;margin:18mm 16mm 20mm;@bottom-right{content:counter(page) " / " counter(pages);font:9pt sans-serif}}
@media print{
nav,summary{display:none}
:root{--ink:#000;--soft:#333;--paper:#fff;--panel:#fff;--rule:#888;--grid:#ccc;--accent:#000;--good:#000;--bad:#000}
body{max-width:none;padding:0;font-size:10pt;line-height:1.38}
h1{font-size:18pt}h2{font-size:13pt;margin-top:1.4rem;break-after:avoid}h3{font-size:10.5pt;break-after:avoid}
p,li{orphans:3;widows:3}
.scroll{overflow:visible;break-inside:avoid}
.scroll.rounds{break-inside:auto}
.side{display:block;columns:2;column-gap:8mm;break-inside:avoid}.side .scroll{margin-top:0}
.side table{width:100%;min-width:0}
.rounds table{width:100%}
header .facts{gap:.3rem 1.4rem}
table{font-size:8.5pt}
td.number{white-space:normal}
.rounds td:nth-child(6){white-space:nowrap}
thead{display:table-header-group}
tr,figure,.verdict,.facts,.change{break-inside:avoid}
caption,figcaption{break-after:avoid}
}
"""
