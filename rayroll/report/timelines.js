// Sessions over time on a canvas: wheel or + and - zoom, dragging or arrows pan, 0 shows all; hovering says what is what.
(() => {
  const data = JSON.parse(document.getElementById("timelines").textContent);
  const canvas = document.getElementById("lanes"), tip = document.getElementById("tip"), range = document.getElementById("range");
  const fold = document.getElementById("fold"), draw2d = canvas.getContext("2d");
  const LEFT = 132, ROW = 11, PAD = 7, AXIS = 26, CUT = 60000;
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 432e5, 864e5, 1728e5, 6048e5];
  let session, cuts, end, from, to, lanes, height;

  const time = (ms) => {
    if (ms < 1000) return Math.round(ms) + " ms";
    if (ms < 6e4) return +(ms / 1000).toFixed(ms < 1e4 ? 2 : 1) + " s";
    const parts = [[864e5, "d"], [36e5, "h"], [6e4, "min"], [1e3, "s"]];
    const told = [];
    for (const [size, unit] of parts) {
      const n = Math.floor(ms / size);
      if (n || told.length) told.push([n, unit]);
      ms -= n * size;
    }
    return told.slice(0, 2).filter(([n], i) => n || !i).map(([n, unit]) => n + " " + unit).join(" ");
  };

  // Where neither the model nor a tool is at work for over a minute, a minute is shown of it.
  const findCuts = () => {
    const found = [];
    let at = 0, lost = 0;
    const work = session.spans.filter((s) => session.lanes[s[0]][0] !== "human" && session.lanes[s[0]][0] !== "idle");
    for (const [, , start, ms] of [...work, [0, 0, session.ms, 0]]) {
      if (start - at > CUT) found.push({ at: at + CUT / 2, upto: start - CUT / 2, lost: (lost += start - at - CUT) });
      at = Math.max(at, start + ms);
    }
    return found;
  };
  const shown = (ms) => {
    if (!fold.checked) return ms;
    let lo = 0, hi = cuts.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (cuts[mid].at < ms) lo = mid + 1; else hi = mid; }
    if (!lo) return ms;
    const cut = cuts[lo - 1], before = lo > 1 ? cuts[lo - 2].lost : 0;
    return ms < cut.upto ? cut.at - before : ms - cut.lost;
  };

  const choose = (index) => {
    session = data[index];
    cuts = findCuts();
    const lost = cuts.length ? cuts[cuts.length - 1].lost : 0;
    fold.checked = lost > session.ms / 2;
    let y = AXIS;
    lanes = session.lanes.map(([key, label, rows]) => { const lane = { key, label, y, h: rows * ROW + PAD }; y += lane.h; return lane; });
    height = y + 4;
    document.querySelectorAll("#sessions button").forEach((b, i) => b.setAttribute("aria-pressed", i === index));
    document.getElementById("session-facts").textContent = session.facts;
    all();
  };
  const all = () => { end = shown(session.ms) || 1; from = 0; to = end; paint(); };
  const look = (a, b) => {
    const wide = Math.min(Math.max(b - a, 2), end);
    from = Math.min(Math.max(a, 0), end - wide); to = from + wide; paint();
  };
  const zoom = (factor, at = (from + to) / 2) => look(at - (at - from) * factor, at + (to - at) * factor);
  const pan = (share) => look(from + (to - from) * share, to + (to - from) * share);
  const plot = () => canvas.clientWidth - LEFT;
  const x = (ms) => LEFT + ((shown(ms) - from) / (to - from)) * plot();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const paint = () => {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = width * scale; canvas.height = height * scale;
    draw2d.setTransform(scale, 0, 0, scale, 0, 0);
    draw2d.font = "12px system-ui, sans-serif"; draw2d.textBaseline = "middle";
    const ink = colour("--ink"), muted = colour("--muted"), line = colour("--line");
    const step = STEPS.find((s) => (s / (to - from)) * plot() > 78) || STEPS[STEPS.length - 1];
    draw2d.strokeStyle = line; draw2d.fillStyle = muted; draw2d.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const px = LEFT + ((at - from) / (to - from)) * plot();
      draw2d.beginPath(); draw2d.moveTo(px, AXIS - 6); draw2d.lineTo(px, height); draw2d.stroke();
      if (px > LEFT + 12 && px < width - 24) draw2d.fillText(time(at), px, 9);
    }
    draw2d.textAlign = "right";
    for (const lane of lanes) {
      draw2d.fillStyle = ink; draw2d.fillText(lane.label, LEFT - 10, lane.y + (lane.h - PAD) / 2);
      draw2d.beginPath(); draw2d.moveTo(0, lane.y - PAD / 2); draw2d.lineTo(width, lane.y - PAD / 2); draw2d.stroke();
    }
    draw2d.save(); draw2d.beginPath(); draw2d.rect(LEFT, 0, plot(), height); draw2d.clip();
    let visible = 0;
    const colours = lanes.map((lane) => colour("--c-" + lane.key));
    for (const [lane, row, start, ms] of session.spans) {
      const a = x(start), b = x(start + ms);
      if (b < LEFT || a > width) continue;
      visible++;
      draw2d.fillStyle = colours[lane];
      draw2d.fillRect(a, lanes[lane].y + row * ROW, Math.max(b - a, 0.8), ROW - 2);
    }
    // Where a pause was cut; of very many nothing else would be seen.
    const inside = fold.checked ? cuts.map((cut) => x(cut.at)).filter((px) => px > LEFT && px < width) : [];
    draw2d.fillStyle = colour("--surface");
    if (inside.length < 60) for (const px of inside) draw2d.fillRect(px - 1.5, AXIS - 6, 3, height);
    draw2d.restore();
    Object.assign(canvas.dataset, { from: from.toFixed(1), to: to.toFixed(1), visible });
    range.textContent = time(from) + " to " + time(to) + " of " + time(end) + (fold.checked ? ", pauses over a minute cut to one" : "");
  };

  const hit = (event) => {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, near = 4;
    if (px < LEFT) return null;
    for (const span of session.spans) {
      const lane = lanes[span[0]], top = lane.y + span[1] * ROW;
      if (py < top || py >= top + ROW) continue;
      const a = x(span[2]), away = Math.max(a - px, px - Math.max(x(span[2] + span[3]), a + 0.8), 0);
      if (away < near) { near = away; best = span; }
    }
    return best;
  };
  const say = (event) => {
    const span = hit(event);
    tip.hidden = !span;
    if (!span) return;
    const what = session.words[span[4]];
    tip.textContent = what + (what ? ", " : "") + time(span[3]) + "\nfrom " + time(span[2]) + (span[5] ? "\n" + span[5] : "");
    const box = canvas.parentElement.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4) + "px";
    tip.style.top = event.clientY - box.top + 16 + "px";
  };

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan(event.deltaX / plot());
    const at = from + ((event.clientX - canvas.getBoundingClientRect().left - LEFT) / plot()) * (to - from);
    zoom(Math.exp(event.deltaY / 400), Math.min(Math.max(at, from), to));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (held === null) return say(event);
    tip.hidden = true; pan((held - event.clientX) / plot()); held = event.clientX;
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  const keys = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), 0: all, Home: all };
  canvas.addEventListener("keydown", (event) => { const act = keys[event.key]; if (act) { event.preventDefault(); act(); } });
  document.querySelectorAll("[data-act]").forEach((b) => b.addEventListener("click", () => { keys[b.dataset.act](); }));
  document.querySelectorAll("#sessions button").forEach((b, i) => b.addEventListener("click", () => choose(i)));
  fold.addEventListener("change", all);
  new ResizeObserver(() => paint()).observe(canvas.parentElement);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  choose(0);
})();
