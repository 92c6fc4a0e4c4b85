# ruff: noqa: E501 (a rule of the style sheet is one line)
"""The style sheet of the status page: colours of both schemes, type, layout. One constant, nothing else."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;
--paper:#f5f6f8;--card:#fff;--ink:#16191f;--soft:#565f6e;--line:#dfe3ea;--track:#e9ecf1;--link:#0b57c2;
--good:#0d7a43;--work:#1f5fd0;--care:#96590a;--bad:#c0262d;--calm:#5c6675;
--good-wash:#e3f4ea;--work-wash:#e6eefc;--care-wash:#fdf1dc;--bad-wash:#fdeaea;--calm-wash:#eceff3;
--p-starting:#8a93a3;--p-awaiting_launcher:#aab2c0;--p-restoring:#2f86d6;--p-awaiting_engine:#7a63c7;--p-warming:#e08a1e;
--m-visited:#76808f;--p-verifying:#149a94;--p-ready:#1d9a58;--p-suspended:#d1434a;--p-draining:#6b7484;--p-stopped:#3a404b}
@media (prefers-color-scheme:dark){:root{
--paper:#0f1217;--card:#181c23;--ink:#eceff4;--soft:#a3adbc;--line:#2b313c;--track:#2a303a;--link:#8ab8ff;
--good:#5cd394;--work:#85b3ff;--care:#f2b756;--bad:#ff8a8a;--calm:#aab4c3;
--good-wash:#12301f;--work-wash:#152745;--care-wash:#37280d;--bad-wash:#401a1d;--calm-wash:#252b35;
--p-starting:#78818f;--p-awaiting_launcher:#565f6d;--p-restoring:#4b9fe8;--p-awaiting_engine:#9a85e6;--p-warming:#f0a340;
--m-visited:#6d7888;--p-verifying:#35b9b2;--p-ready:#3fbf7a;--p-suspended:#ec6a70;--p-draining:#8891a0;--p-stopped:#c3cad5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
-webkit-text-size-adjust:100%;overflow-wrap:break-word}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 20px}
h1,h2,h3,p,dl,dd,ol,ul{margin:0;padding:0}
ol,ul{list-style:none}
h2{font-size:15px;font-weight:650;display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center;justify-content:space-between}
h3{font-size:13px;font-weight:600;color:var(--soft);margin:14px 0 4px}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:4px}
code{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.soft{color:var(--soft);font-weight:400}.small{font-size:13px}
.skip{position:absolute;left:-9999px}.skip:focus{left:12px;top:8px;background:var(--card);padding:6px 10px}
header{display:flex;flex-wrap:wrap;gap:2px 16px;justify-content:space-between;padding-top:14px;padding-bottom:10px;font-size:13px;color:var(--soft)}
header strong{color:var(--ink)}
.hero{border:1px solid var(--line);border-left:8px solid var(--tone);border-radius:12px;background:var(--wash);padding:20px 24px 18px}
.hero h1{font-size:30px;line-height:1.15;font-weight:750;letter-spacing:-.01em;color:var(--tone)}
.hero .why{font-size:20px;line-height:1.4;margin-top:8px;max-width:62em}
.hero .next{margin-top:10px;max-width:70em}.hero .next b{color:var(--tone)}
.hero .since{margin-top:10px;color:var(--soft);font-size:14px}
.hero svg .track{fill:var(--card)}.hero .meter{margin-top:12px;max-width:720px}
.good{--tone:var(--good);--wash:var(--good-wash)}.work{--tone:var(--work);--wash:var(--work-wash)}
.care{--tone:var(--care);--wash:var(--care-wash)}.bad{--tone:var(--bad);--wash:var(--bad-wash)}
.calm{--tone:var(--calm);--wash:var(--calm-wash)}
.notices{margin-top:14px;border:1px solid var(--line);border-left:8px solid var(--care);border-radius:12px;background:var(--care-wash);padding:12px 24px}
.notices h2{color:var(--care)}.notices li{margin-top:4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin-top:14px}
.tiles>div,.card{background:var(--card);border:1px solid var(--line);border-radius:12px;min-width:0}
.tiles>div{padding:11px 16px 12px;display:flex;flex-direction:column}
.tiles dt{font-size:13px;color:var(--soft)}
.tiles dd.big{font-size:23px;line-height:1.25;font-weight:680;color:var(--tone,var(--ink));font-variant-numeric:tabular-nums}
.tiles dd.more{font-size:13px;color:var(--soft)}
.tiles .calm dd.big{color:var(--ink)}
.cols{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:14px;margin-top:14px;align-items:start}
.stack{display:grid;gap:14px;min-width:0}
.card{padding:14px 18px 16px}
.card>p{margin-top:6px}
.tag{display:inline-block;font-size:12.5px;font-weight:620;line-height:1.5;padding:0 9px;border-radius:99px;color:var(--tone);background:var(--wash);white-space:nowrap}
.timeline svg.bar{display:block;width:100%;height:30px;margin:12px 0 10px;border-radius:6px;background:var(--track)}
.legend{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:3px 26px}
.legend li{display:flex;gap:8px;align-items:center;padding:2px 0}
.legend .name{flex:1;white-space:nowrap}.legend time{min-width:58px;text-align:right}.legend .now{font-weight:680}
.legend svg{flex:none}
.n,td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.scroll{overflow-x:auto;margin-top:8px;container-type:inline-size}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-size:12.5px;font-weight:600;color:var(--soft);text-align:left;vertical-align:bottom}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--line)}
td,tbody th{vertical-align:middle}tbody th{font-size:14px;color:var(--ink);font-weight:550}
tr:last-child>*{border-bottom:0}th:last-child,td:last-child{padding-right:0}
td.figure{width:120px;min-width:90px}td svg,th svg{display:block}th .key{display:inline-flex;gap:5px;align-items:center;margin-right:10px}
th.n{white-space:normal}th.key-column{white-space:nowrap}
tr.has-why>*{border-bottom:0}tr.why td{color:var(--tone,var(--soft));font-size:13px;padding-top:0;overflow-wrap:anywhere}
tr.why .said{display:block;position:sticky;left:0;width:max-content;max-width:100cqw}
tr.work>*{background:var(--work-wash)}
.alarm{color:var(--bad);font-weight:680}
.one-gpu details{margin-top:2px}.whole{user-select:all;overflow-wrap:anywhere}
.one-gpu.lost{border:1px solid var(--bad);border-left-width:6px;border-radius:8px;background:var(--bad-wash);padding:8px 12px;margin-top:10px}
.one-gpu.lost h3{color:var(--bad);font-size:15px;margin-top:0}
.diff{white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px;margin-top:6px}
.diff del{background:var(--bad-wash);color:var(--bad);text-decoration:line-through}.diff ins{background:var(--good-wash);color:var(--good);text-decoration:underline}
dl.facts{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 14px;margin-top:8px;font-size:14px}
dl.facts dt{color:var(--soft)}dl.facts dd{overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
dl.facts .from{display:block;color:var(--soft);font-size:12px;line-height:1.35}
.events li{display:grid;grid-template-columns:max-content 14px minmax(0,1fr);gap:8px;padding:4px 0;border-bottom:1px solid var(--line);font-size:14px}
.events li:last-child{border-bottom:0}.events time{color:var(--soft);font-variant-numeric:tabular-nums}
.events .mark{color:var(--tone);font-weight:700;text-align:center}
.events li.bad .said{color:var(--bad)}.events li.care .said{color:var(--care)}
.keys{color:var(--soft);display:flex;flex-wrap:wrap;gap:2px 14px}.keys .key{display:inline-flex;gap:5px;align-items:center}
.plot{display:grid;grid-template-columns:44px minmax(0,1fr);gap:6px;margin-top:8px}.plot svg{display:block}
.plot text{font-size:11.5px;fill:var(--soft);font-variant-numeric:tabular-nums}.plot .grid{fill:var(--line)}
svg .s-visited{fill:var(--m-visited)}svg .s-replayed{fill:var(--p-restoring)}svg .s-compiled{fill:var(--p-warming)}
svg .k-made{fill:var(--p-warming)}svg .k-ready{fill:var(--p-restoring)}svg .k-died{fill:var(--p-suspended)}svg .k-this{fill:var(--p-ready)}
details{margin-top:8px}summary{cursor:pointer;color:var(--soft);font-size:13px}
svg .track{fill:var(--track)}svg .soft{fill:var(--calm);opacity:.45}
svg .fill{fill:var(--tone,var(--work))}svg .before{fill:var(--p-warming)}svg .after{fill:var(--p-ready)}svg .late{fill:var(--p-suspended)}
h2+.meter{margin-top:8px}.said,.why,.card>p,.notices li{overflow-wrap:anywhere}
.meter svg{display:block;width:100%;height:8px;border-radius:4px}
.meter .small{display:flex;justify-content:space-between;gap:12px}
footer{padding-top:16px;padding-bottom:28px;font-size:13px;color:var(--soft);display:flex;flex-wrap:wrap;gap:4px 18px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media (max-width:900px){.cols{grid-template-columns:minmax(0,1fr)}}
@media (max-width:560px){header,main,footer{padding-left:12px;padding-right:12px}
.hero{padding:16px 16px 14px;border-left-width:6px}.hero h1{font-size:25px}.hero .why{font-size:17px}
.notices{padding:10px 16px;border-left-width:6px}.card{padding:12px 14px}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tiles>div{padding:9px 12px}.tiles dd.big{font-size:19px}.legend{grid-template-columns:minmax(0,1fr)}.legend .name{white-space:normal}
.tiles>div:first-child{grid-column:1/-1}.wide-only{display:none}td.figure{min-width:64px;width:64px}th.key-column{white-space:normal}th .key{margin-right:0}th,td{padding-right:9px}}
@media (prefers-reduced-motion:no-preference){.pulse{animation:pulse 2s ease-in-out infinite}@keyframes pulse{50%{opacity:.55}}}
@media print{body{background:#fff}.card,.hero{break-inside:avoid}}
""" + "".join(
    f"svg .p-{phase}{{fill:var(--p-{phase})}}"
    for phase in (
        "starting",
        "awaiting_launcher",
        "restoring",
        "awaiting_engine",
        "warming",
        "verifying",
        "ready",
        "suspended",
        "draining",
        "stopped",
    )
)
