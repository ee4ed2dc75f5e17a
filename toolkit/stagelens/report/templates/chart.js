// Draws the chart described in #chart-data (its shape: stagelens/report/charts.py) and redraws it when a control changes.
(() => {
  const chart = JSON.parse(document.getElementById("chart-data").textContent);
  const control = (name) => document.getElementById(`chart-${name}`);
  const picture = document.getElementById("chart");

  // Plotly reads a little html in its texts; names are text, so what could be html is escaped.
  const text = (name) => String(name).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const of = (values, align) => (Array.isArray(values) ? values : values[align]);

  const addOption = (select, value, label, disabled) => {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = label;
    option.disabled = disabled;
    select.append(option);
  };

  const band = (trace, x, align) => {
    const edge = { x, mode: "lines", line: { width: 0, color: trace.colour }, showlegend: false, hoverinfo: "skip", connectgaps: true };
    return [
      { ...edge, y: of(trace.low, align) },
      { ...edge, y: of(trace.high, align), fill: "tonexty", fillcolor: trace.colour + "2e" },
    ];
  };

  const lines = (trace, align, alone) => {
    const x = chart.axes[trace.axis][align];
    const line = { color: trace.colour, dash: trace.dash, width: trace.theory ? 1.6 : 2, shape: trace.step ? "hv" : "linear" };
    const drawn = { x, y: of(trace.y, align), name: text(trace.name), mode: "lines", line, connectgaps: !trace.theory, showlegend: !alone };
    if (trace.faint) Object.assign(drawn, { line: { ...line, dash: "solid", width: 0.8 }, opacity: 0.6, showlegend: false });
    return trace.low ? [...band(trace, x, align), drawn] : [drawn];
  };

  // On a log axis what is not above zero has no place: points there are left out, edges go to the first place.
  const positives = (values) => values.filter((value) => value > 0);
  const onLog = (values) => values.map((value) => (value > 0 ? value : null));
  const logRange = (values) => {
    const [least, most] = positives(values).reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, 0]);
    return most > 0 ? [Math.log10(least), Math.log10(most) + 0.02] : [0, 1];
  };

  // Shapes take data values on a log axis, annotations their logarithm.
  const shapes = (series, align) => [
    ...(chart.marks?.[align] ?? []).flatMap((mark) => [
      { type: "rect", xref: "x", yref: "paper", x0: mark.start, x1: mark.end, y0: 0, y1: 1, fillcolor: "#000", opacity: 0.06, line: { width: 0 }, layer: "below" },
      { type: "line", xref: "x", yref: "paper", x0: mark.at, x1: mark.at, y0: 0, y1: 1, line: { color: "#999", width: 1 }, layer: "below" },
    ]),
    ...(series.levels ?? []).map((level) => ({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: level.y, y1: level.y, line: { color: "#000", width: 1, dash: "dash" } })),
    ...timesOf(series, align).map((time) => ({ type: "line", xref: "x", yref: "paper", x0: time.at, x1: time.at, y0: 0, y1: 1, line: { color: "#000", width: 1, dash: "dash" } })),
  ];

  const timesOf = (series, align) => (chart.times?.[align] ?? []).filter((time) => time.series === series.name);

  // A name that would run into the one before goes a line higher.
  const staggered = (names) => {
    const reach = Math.abs(names.at(-1)?.x - names[0]?.x) * 0.12;
    names.forEach((name, index) => { name.yshift = index && name.x - names[index - 1].x < reach && !names[index - 1].yshift ? 14 : 0; });
    return names;
  };

  const annotations = (series, align, logX, logY) => {
    const place = (value, log) => (log ? Math.log10(value) : value);
    const small = { showarrow: false, font: { size: 11, color: "#444" } };
    const drawable = (value, log) => !log || value > 0;
    return [
      ...staggered((chart.marks?.[align] ?? []).filter((mark) => mark.name && drawable(mark.at, logX)).map((mark) => (
        { ...small, text: text(mark.name), x: place(mark.at, logX), xref: "x", y: 1, yref: "paper", yanchor: "bottom" }))),
      ...(series.levels ?? []).filter((level) => drawable(level.y, logY)).map((level) => (
        { ...small, text: text(level.name), x: 1, xref: "paper", xanchor: "left", y: place(level.y, logY), yref: "y" })),
      ...timesOf(series, align).filter((time) => drawable(time.at, logX)).map((time) => (
        { ...small, text: text(time.name), textangle: -90, x: place(time.at, logX), xref: "x", xanchor: "left", y: 0, yref: "paper", yanchor: "bottom" })),
    ];
  };

  // Events as small triangles along the foot of the picture, those of the chosen series filled.
  const eventTrace = (series, align) => {
    const events = chart.events?.[align] ?? [];
    return {
      x: events.map((event) => event.at), y: events.map(() => 0.02), yaxis: "y2", mode: "markers", showlegend: false,
      marker: { symbol: events.map((event) => (event.series === series.name ? "triangle-up" : "triangle-up-open")), size: 9, color: "#444" },
      text: events.map((event) => `${text(event.series)}<br>${text(event.what)}`), hovertemplate: "%{x}<br>%{text}<extra></extra>",
    };
  };

  // The transitions of a comparison: thin vertical lines, one trace for each group. One entry of the legend explains and hides them.
  const transitionTraces = (align) => {
    const groups = (chart.transitions?.[align] ?? []).filter((group) => group.at.length);
    const thin = { yaxis: "y2", mode: "lines", legendgroup: "transitions", hoverinfo: "skip" };
    const entry = { ...thin, x: [null], y: [null], name: "thin vertical lines: transitions", showlegend: true, line: { color: "#777", width: 1 } };
    return groups.length ? [entry, ...groups.map((group) => (
      { ...thin, x: group.at.flatMap((at) => [at, at, null]), y: group.at.flatMap(() => [0, 1, null]), showlegend: false, opacity: 0.6, line: { color: group.colour, dash: group.dash, width: 1 } }))] : [];
  };

  const draw = () => {
    const series = chart.series[Number(control("series").value)];
    const align = control("align").value;
    const [logX, logY] = [control("log-x").checked, control("log-y").checked];
    const traces = series.traces.flatMap((trace) => lines(trace, align, series.traces.length === 1));
    traces.push(...transitionTraces(align));
    if (control("events").checked) traces.push(eventTrace(series, align));
    const ranges = {};
    if (logX) {
      ranges.x = { range: logRange(traces.flatMap((trace) => trace.x)) };
      traces.forEach((trace) => { trace.x = onLog(trace.x); });
    }
    if (logY) traces.forEach((trace) => { if (trace.yaxis !== "y2") trace.y = onLog(trace.y); });
    const bounded = shapes(series, align).map((shape) => (logX && shape.xref === "x" ? { ...shape, x0: Math.max(shape.x0, 10 ** ranges.x.range[0]), x1: Math.max(shape.x1, 10 ** ranges.x.range[0]) } : shape))
      .filter((shape) => !(logY && shape.yref === "y" && shape.y0 <= 0));
    const named = series.labels?.length ? { tickvals: series.labels.map((_, index) => index), ticktext: series.labels.map(text) } : {};
    const axis = { zeroline: false, gridcolor: "#eceef1", linecolor: "#999", showline: true, ticks: "outside", tickcolor: "#999", exponentformat: "power" };
    const margin = 14 + 6.2 * Math.max(0, ...(series.levels ?? []).map((level) => level.name.length));
    const layout = {
      margin: { l: 70, r: Math.max(20, margin), t: 40, b: 55 },
      font: { family: "system-ui, -apple-system, sans-serif", size: 13, color: "#1c1e21" },
      plot_bgcolor: "#fff", paper_bgcolor: "#fff", hovermode: "x unified", hoverlabel: { namelength: -1 },
      xaxis: { ...axis, title: { text: text(chart.alignments.find((one) => one.name === align).label) }, type: logX ? "log" : "linear", ...ranges.x, ...(align === "stage" && !logX ? { dtick: 1 } : {}) },
      yaxis: { ...axis, title: { text: text(series.title) }, type: logY ? "log" : "linear", automargin: true, ...named },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0 },
      shapes: bounded, annotations: annotations(series, align, logX, logY),
    };
    control("note").textContent = logY && !series.traces.some((trace) => positives(of(trace.y, align)).length) ? "no value of this series is above zero: a log axis shows nothing" : "";
    Plotly.react(picture, traces, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
  };

  chart.series.forEach((series, index) => addOption(control("series"), index, series.name, false));
  chart.alignments.forEach((one) => addOption(control("align"), one.name, one.problem ? `${one.name} (not possible)` : one.name, Boolean(one.problem)));
  control("align").title = chart.alignments.map((one) => one.problem).filter(Boolean).join("\n");
  control("events-label").hidden = !Object.values(chart.events ?? {}).some((events) => events.length);
  const fitLog = () => { control("log-x").checked = Boolean(chart.log) && ["step", "fraction"].includes(control("align").value); };
  control("align").addEventListener("change", fitLog);
  fitLog();
  for (const name of ["series", "align", "log-x", "log-y", "events"]) control(name).addEventListener("change", draw);
  draw();
})();
