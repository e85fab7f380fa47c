// The charts of the overview. The server computes the figures, for all viewers at once.
"use strict";
(() => {
  const place = document.querySelector("[data-charts]");
  if (!place || !window.uPlot) return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const length = (seconds) => {
    if (seconds == null) return "–";
    if (seconds < 1) return `${+(seconds * 1000).toPrecision(3)} ms`;
    if (seconds < 60) return `${+seconds.toPrecision(3)} s`;
    return seconds < 3600 ? `${+(seconds / 60).toPrecision(3)} m` : `${+(seconds / 3600).toPrecision(3)} h`;
  };
  const rate = (value) => (value == null ? "–" : `${+value.toPrecision(3)} /min`);
  const two = (number) => String(number).padStart(2, "0");
  const moment = (seconds, each) => {
    const time = new Date(seconds * 1000);
    return each >= 86400 ? `${two(time.getMonth() + 1)}-${two(time.getDate())}` : `${two(time.getHours())}:${two(time.getMinutes())}`;
  };
  const axis = (values, size) => ({
    stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui",
    ...(values ? { values: (_, ticks) => ticks.map(values) } : {}), ...(size ? { size } : {}),
  });
  const options = (series, values) => ({
    width: 400, height: 180, series: [{ value: "{YYYY}-{MM}-{DD} {HH}:{mm}" }, ...series],
    axes: [{ ...axis(null), values: (_, ticks, __, ___, each) => ticks.map((one) => moment(one, each)) }, axis(values, 68)], scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    cursor: { sync: { key: "overview" }, drag: { x: false, y: false }, y: false }, legend: { live: true },
    hooks: { init: [clicked] },
  });
  const line = (label, stroke, value, fill) => ({ label, stroke: color(stroke), width: 1.5, value: (_, one) => value(one), spanGaps: true,
    points: { show: true, size: 4 }, ...(fill ? { fill: `${color(stroke)}22` } : {}) });
  let plots = [];
  let last = null;
  // A click leads to the runs of that part: to the failed ones on their line, to all that have ended elsewhere.
  const clicked = (plot) => plot.over.addEventListener("click", () => {
    const at = plot.cursor.idx;
    if (at == null || !last || last.times.length < 2) return;
    const far = (series) => {
      const value = plot.data[series][at];
      return value == null ? Infinity : Math.abs(plot.valToPos(value, "y") - plot.cursor.top);
    };
    const failed = plot === plots[0] && last.failed[at] > 0 && far(2) < far(1);
    const time = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");
    const step = last.times[1] - last.times[0];
    const query = `newer:${time(last.times[at])} older:${time(last.times[at] + step)} status:${failed ? "failed" : "completed,failed,cancelled"}`;
    window.location.assign(`${place.dataset.runs}?${new URLSearchParams({ q: query })}`);
  });
  const make = () => {
    for (const one of plots) one.destroy();
    const [throughput, duration] = place.querySelectorAll("[data-plot]");
    plots = [
      new uPlot(options([line("ended", "--accent", rate, true), line("failed", "--failed", rate)], rate), null, throughput),
      new uPlot(options([line("p50", "--completed", length), line("p99", "--waiting", length)], length), null, duration),
    ];
    fit();
    if (last) draw(last);
  };
  const fit = () => {
    for (const one of plots) {
      const width = one.root.parentElement.clientWidth;
      if (width > 0) one.setSize({ width, height: 180 });
    }
  };
  const draw = (found) => {
    last = found;
    plots[0].setData([found.times, found.ended, found.failed]);
    plots[1].setData([found.times, found.p50, found.p99]);
    const at = found.ended.findLastIndex((one) => one !== null);
    const worst = found.p99.findLastIndex((one) => one !== null);
    place.querySelector("[data-chart-note]").textContent = at < 0 ? "reading…"
      : `now ${rate(found.ended[at])} ended, ${rate(found.failed[at])} failed${worst < 0 ? "" : `; p99 ${length(found.p99[worst])}`}`
        + `${found.complete ? "" : "; earlier parts are still being read"}`;
  };
  const load = async () => {
    let wait = 15000;
    if (!document.hidden) {
      try {
        const answer = await fetch(place.dataset.charts, { credentials: "same-origin" });
        if (answer.ok && !answer.redirected) {
          const found = await answer.json();
          draw(found);
          if (!found.complete) wait = 2000;
        }
      } catch { /* the next time tries again */ }
    }
    window.setTimeout(load, wait);
  };
  make();
  new ResizeObserver(fit).observe(place);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", make);
  load();
})();
