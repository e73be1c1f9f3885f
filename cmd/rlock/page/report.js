'use strict';
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($('data').textContent);
  const root = document.documentElement;

  // The ends of a stint, and its flags: see report_timeline.go.
  const EXPIRED = 1, GONE = 2, FORCED = 3, VANISHED = 4, OPEN = 5, GAVE_UP = 6, PASSED = 7, UNSEEN = 8, END = 15, BEGAN = 16, WRITING = 32;
  const isBad = (end) => end >= EXPIRED && end <= VANISHED;

  // Stints, one after the other by lock and lane; sorted by their start in each lane.
  const S = unpack();
  function unpack() {
    let n = 0;
    for (const l of data.locks) for (const lane of l.lanes) n += lane[1];
    const s = {
      n, from: new Float64Array(n), to: new Float64Array(n), how: new Uint8Array(n), in: new Float64Array(n), out: new Float64Array(n),
      client: new Uint32Array(n), tag: new Float64Array(n), bits: new Uint8Array(n), lock: new Uint32Array(n),
    };
    const text = atob($('stints').textContent), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    let at = 0, i = 0;
    const number = () => {
      let v = 0, unit = 1, b;
      do { b = bytes[at++]; v += (b & 127) * unit; unit *= 128; } while (b > 127);
      return v;
    };
    data.locks.forEach((l, lock) => {
      l.number = lock;
      l.lanes = l.lanes.map(([waits, many]) => {
        const lane = { waits: waits === 1, first: i, end: i + many, disjoint: true };
        let before = 0;
        for (; i < lane.end; i++) {
          before += number();
          if (i > lane.first && before < s.to[i - 1]) lane.disjoint = false;
          s.from[i] = before; s.to[i] = before + number(); s.how[i] = number(); s.in[i] = number(); s.out[i] = number();
          s.client[i] = number(); s.tag[i] = number(); s.lock[i] = lock;
          if (s.client[i] > 0 && s.tag[i] % 4 === 3) s.bits[i] = number();
        }
        return lane;
      });
    });
    return s;
  }

  // Who it was.
  const owner = (i) => {
    if (S.client[i] === 0) return '';
    const v = Math.floor(S.tag[i] / 4);
    const tag = [() => `${v}`, () => data.tags[v], () => `0${v}`, () => `${S.bits[i]}${String(v).padStart(18, '0')}`][S.tag[i] % 4]();
    return data.clients[S.client[i] - 1][0] + (tag === '' ? '' : `:${tag}`) + (S.how[i] & WRITING ? ':write' : '');
  };
  const remark = (text) => /:00$/.test(text) ? ', kept after its unlock by WithMinHold' : /:000\d/.test(text) ? ', left to a ticket' : '';
  const processName = (client) => data.clients[client - 1][1] || `${data.clients[client - 1][0].slice(0, 8)}…`;
  const who = (i) => {
    if (S.client[i] > 0) return processName(S.client[i]);
    return S.tag[i] > 0 ? `${S.tag[i]} other${S.tag[i] === 1 ? '' : 's'}` : 'unknown';
  };
  const paint = data.clients.map(([id, label]) => {
    let h = 2166136261;
    for (const c of label || id) h = Math.imul(h ^ c.codePointAt(0), 16777619);
    return (h >>> 0) % 8;
  });
  { // the first eight processes get different colours
    const known = new Map();
    data.clients.forEach(([id, label], c) => {
      const key = label || id;
      if (!known.has(key)) known.set(key, known.size < 8 ? known.size : paint[c]);
      paint[c] = known.get(key);
    });
  }

  // Times.
  const span = data.to - data.from;
  const pad = (n, many = 2) => String(n).padStart(many, '0');
  const clock = (t, digits = 3) => {
    const d = new Date(data.from + t);
    return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}${digits ? '.' + pad(d.getMilliseconds(), 3) : ''}`;
  };
  const day = (t) => { const d = new Date(data.from + t); return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`; };
  const manyDays = day(0) !== day(span);
  const when = (t, digits) => (manyDays ? `${day(t).slice(5)} ` : '') + clock(t, digits);
  const long = (ms) => {
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 60e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 2 : 1)} s`;
    if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${pad(Math.floor(ms / 1000) % 60)} s`;
    return `${Math.floor(ms / 3600e3)} h ${pad(Math.floor(ms / 60e3) % 60)} min`;
  };

  // Sums by lock.
  for (const l of data.locks) {
    Object.assign(l, { holds: 0, held: 0, waits: 0, waited: 0, longest: 0, losses: 0, forced: 0 });
    for (const lane of l.lanes) {
      for (let i = lane.first; i < lane.end; i++) {
        const d = S.to[i] - S.from[i];
        if (lane.waits) { l.waits++; l.waited += d; l.longest = Math.max(l.longest, d); continue; }
        if ((S.how[i] & END) === PASSED) continue;
        l.holds++; l.held += d;
        if (isBad(S.how[i] & END)) l.losses++;
        if ((S.how[i] & END) === FORCED) l.forced++;
      }
    }
  }

  // The filter, and the part of the time that is shown.
  const state = { from: 0, to: span, lock: -1, stint: -1 };
  let shown = [], tops = [], height = 0, chosen = null;
  const AXIS = 24, TITLE = 17, HOLD = 13, WAIT = 6, GAP = 9;
  const orders = {
    wait: (a, b) => b.longest - a.longest, waited: (a, b) => b.waited - a.waited, held: (a, b) => b.held - a.held,
    bad: (a, b) => b.losses - a.losses, name: () => 0,
  };
  function has(l, clients) {
    for (const lane of l.lanes) for (let i = lane.first; i < lane.end; i++) if (clients[S.client[i]]) return true;
    return false;
  }
  function filter() {
    const name = $('name').value.toLowerCase(), process = $('who').value.toLowerCase(), only = $('only').value;
    chosen = null;
    if (process) {
      chosen = new Uint8Array(data.clients.length + 1);
      data.clients.forEach(([id, label], c) => { chosen[c + 1] = id.toLowerCase().includes(process) || label.toLowerCase().includes(process) ? 1 : 0; });
    }
    shown = data.locks.filter((l) => l.name.toLowerCase().includes(name) && (!only || (only === 'waits' ? l.waits > 0 : l.losses > 0)) && (!chosen || has(l, chosen)));
    shown.sort((a, b) => orders[$('order').value](a, b) || a.number - b.number);
    tops = [];
    height = AXIS;
    for (const l of shown) {
      tops.push(height);
      height += TITLE + GAP;
      for (const lane of l.lanes) height += lane.waits ? WAIT : HOLD;
    }
    $('space').style.height = `${Math.max(0, height - pictureHeight())}px`;
    if (!shown.some((l) => l.number === state.lock)) state.lock = -1;
    tables();
    draw();
    remember();
  }

  // The picture.
  const canvas = $('picture'), rows = $('rows'), pen = canvas.getContext('2d');
  let colours = {};
  function readColours() {
    const style = getComputedStyle(root);
    for (const name of ['page', 'text', 'soft', 'line', 'panel', 'bad', 'focus', 'none', 'on', 'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7']) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  const pictureHeight = () => Math.max(90, Math.min(height, Math.floor(window.innerHeight * 0.7) - 2));
  const width = () => rows.clientWidth;
  const x = (t) => (t - state.from) / (state.to - state.from) * width();
  const timeAt = (px) => state.from + px / width() * (state.to - state.from);

  // first returns the first stint of a lane that can be seen from a time on.
  function first(lane, t) {
    if (!lane.disjoint) return lane.first;
    let a = lane.first, b = lane.end;
    while (a < b) { const m = (a + b) >> 1; if (S.to[m] < t) a = m + 1; else b = m; }
    return a;
  }
  const units = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3];

  function draw() {
    const w = width(), h = pictureHeight(), ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
      canvas.style.height = `${h}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.page;
    pen.fillRect(0, 0, w, h);
    pen.textBaseline = 'middle';
    const scrolled = rows.scrollTop;
    for (const m of data.marks) {
      if (m.to <= m.from) continue;
      hatch(x(m.from), x(m.to), AXIS, Math.min(h, height));
    }
    let a = 0, b = shown.length;
    while (a < b) { const m = (a + b) >> 1; if (tops[m] + rowHeight(m) < scrolled) a = m + 1; else b = m; }
    for (let r = a; r < shown.length && tops[r] - scrolled < h; r++) drawRow(r, tops[r] - scrolled, w);
    pen.fillStyle = colours.bad;
    for (const m of data.marks) if (m.to === m.from) pen.fillRect(x(m.from), AXIS, 1.5, h - AXIS);
    axis(w);
    if (shown.length === 0) {
      pen.fillStyle = colours.soft; pen.font = '14px system-ui, sans-serif';
      pen.fillText(data.locks.length ? 'No lock matches.' : 'No lock was seen.', 10, AXIS + 30);
    }
    $('shown').textContent = `${when(state.from, 0)} to ${when(state.to, 0)}, ${long(state.to - state.from)}; ${shown.length} of ${data.locks.length} locks`;
  }
  const rowHeight = (r) => (r + 1 < tops.length ? tops[r + 1] : height) - tops[r];

  function hatch(a, b, top, bottom) {
    a = Math.max(0, a); b = Math.min(width(), Math.max(b, a + 2));
    if (b <= a) return;
    pen.save();
    pen.beginPath(); pen.rect(a, top, b - a, bottom - top); pen.clip();
    pen.strokeStyle = colours.line; pen.lineWidth = 2;
    pen.beginPath();
    for (let at = a - (bottom - top); at < b; at += 7) { pen.moveTo(at, bottom); pen.lineTo(at + bottom - top, top); }
    pen.stroke();
    pen.restore();
  }

  function axis(w) {
    pen.fillStyle = colours.panel; pen.fillRect(0, 0, w, AXIS);
    pen.strokeStyle = colours.line; pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(0, AXIS - .5); pen.lineTo(w, AXIS - .5); pen.stroke();
    const length = state.to - state.from, unit = units.find((u) => u / length * w >= 92) || units[units.length - 1];
    const digits = unit < 1000 ? 3 : 0;
    const zone = new Date(data.from).getTimezoneOffset() * 60e3;
    const start = Math.ceil((data.from + state.from - zone) / unit) * unit - data.from + zone;
    pen.fillStyle = colours.soft; pen.font = '12px system-ui, sans-serif';
    for (let t = start; t <= state.to; t += unit) {
      const at = x(t);
      pen.fillRect(at, AXIS - 6, 1, 6);
      const text = unit >= 60e3 ? clock(t, 0).slice(0, 5) : clock(t, digits), wide = pen.measureText(text).width;
      if (at + 4 + wide <= w) pen.fillText(text, at + 4, AXIS / 2);
    }
  }

  function drawRow(r, top, w) {
    const l = shown[r];
    if (l.number === state.lock) { pen.fillStyle = colours.panel; pen.fillRect(0, top, w, rowHeight(r)); }
    let y = top + TITLE;
    const marks = [];
    for (const lane of l.lanes) {
      drawLane(lane, y, w, marks);
      y += lane.waits ? WAIT : HOLD;
    }
    pen.strokeStyle = colours.page; pen.lineWidth = 2.5; pen.lineJoin = 'round'; // an edge, on bars of any colour
    pen.font = 'bold 13px system-ui, sans-serif';
    for (const [at, row, end] of marks) {
      pen.fillStyle = colours.bad;
      if (end === VANISHED) { pen.strokeText('?', at - 3.5, row); pen.fillText('?', at - 3.5, row); continue; }
      pen.beginPath();
      if (end === FORCED) { pen.moveTo(at, row - 5); pen.lineTo(at + 5, row); pen.lineTo(at, row + 5); pen.lineTo(at - 5, row); }
      else { pen.moveTo(at - 5, row - 5); pen.lineTo(at + 5, row - 5); pen.lineTo(at, row + 4); }
      pen.closePath(); pen.stroke(); pen.fill();
    }
    // Over the bars: the name stays readable where a wait is drawn behind it.
    pen.font = '600 13px system-ui, sans-serif';
    const facts = `${l.kind || 'not seen held'}${l.longest ? `, longest wait ${long(l.longest)}` : ''}${l.losses > l.forced ? `, ${l.losses - l.forced} lost` : ''}${l.forced ? `, ${l.forced} forced` : ''}`;
    pen.fillStyle = colours.text;
    const name = fit(l.name, w - 16);
    pen.fillText(name, 6, top + TITLE / 2 + 1);
    const used = pen.measureText(name).width;
    pen.font = '12px system-ui, sans-serif';
    pen.fillStyle = l.losses ? colours.bad : colours.soft;
    if (w - used - 26 > 60) pen.fillText(fit(facts, w - used - 26), used + 16, top + TITLE / 2 + 1);
    pen.fillStyle = colours.line; pen.fillRect(0, top + rowHeight(r) - 3, w, 1);
  }
  function fit(text, most) {
    if (pen.measureText(text).width <= most) return text;
    const all = Array.from(text);
    let a = 0, b = all.length;
    while (a < b) { const m = (a + b + 1) >> 1; if (pen.measureText(all.slice(0, m).join('') + '…').width <= most) a = m; else b = m - 1; }
    return all.slice(0, a).join('') + '…';
  }

  function drawLane(lane, y, w, marks) {
    const scale = w / (state.to - state.from), thick = lane.waits ? WAIT - 2 : HOLD - 2;
    let drawn = -1, last = '', marked = -1e9;
    for (let i = first(lane, state.from); i < lane.end && S.from[i] <= state.to; i++) {
      if (S.to[i] < state.from) continue;
      const end = S.how[i] & END;
      let a = (S.from[i] - state.from) * scale, b = (S.to[i] - state.from) * scale;
      if (!lane.waits && isBad(end) && (b - marked > 6)) { marks.push([b, y + thick / 2, end]); marked = b; }
      const colour = S.client[i] > 0 ? colours[`c${paint[S.client[i] - 1]}`] : colours.none;
      if (b <= drawn + .5 && colour === last) continue; // nothing new on this pixel
      a = Math.max(a, -2); b = Math.min(Math.max(b, a + 1), w + 2);
      drawn = b; last = colour;
      pen.globalAlpha = chosen && !chosen[S.client[i]] ? .2 : 1;
      pen.fillStyle = colour;
      if (end === PASSED) {
        for (let at = a; at < b; at += 5) pen.fillRect(at, y, Math.min(2, b - at), thick);
      } else if (lane.waits) {
        const strong = pen.globalAlpha;
        pen.globalAlpha = strong * .35; pen.fillRect(a, y + 1, b - a, thick);
        pen.globalAlpha = strong; pen.fillRect(a, y + 1, b - a, 1); pen.fillRect(a, y + thick, b - a, 1);
        if (b - a > 3) { pen.fillRect(a, y + 1, 1, thick); pen.fillRect(b - 1, y + 1, 1, thick); }
      } else {
        pen.fillRect(a, y, Math.max(1, b - a - (b - a > 4 ? 1 : 0)), thick);
        const from = Math.max(a, 0), room = Math.min(b, w) - from - 8;
        if (room > 24) {
          pen.font = '10.5px system-ui, sans-serif'; pen.fillStyle = colours.on;
          pen.fillText(fit(who(i), room), from + 4, y + thick / 2 + .5);
        }
      }
      if (i === state.stint) {
        pen.strokeStyle = colours.text; pen.lineWidth = 2; pen.globalAlpha = 1;
        pen.strokeRect(a - 1, y - 1, Math.max(3, b - a + 1), thick + 2);
      }
      pen.globalAlpha = 1;
    }
  }

  // What a bar says.
  const outcomes = ['released', 'LOST: its lease expired', 'LOST: deleted under its holder', 'FORCED: freed by rlock unlock -force', 'ended while Redis did not answer: lost, or released', 'still held when the recording ended'];
  function describe(i) {
    const l = data.locks[S.lock[i]], waits = laneOf(i).waits, end = S.how[i] & END, took = long(S.to[i] - S.from[i]);
    const about = (t, ms) => when(t) + (ms > 1 ? ` (or up to ${long(ms)} before)` : '');
    if (end === PASSED) return `${l.name}: acquired and released between ${when(S.from[i])} and ${when(S.to[i])}, by whom was not seen`;
    const is = S.client[i] > 0 ? `${who(i)} (${owner(i)}${remark(owner(i))})` : `${S.tag[i]} other process${S.tag[i] === 1 ? '' : 'es'}, such as Redisson's,`;
    const start = S.how[i] & BEGAN ? `before ${when(S.from[i])}` : about(S.from[i], S.in[i]);
    if (waits) {
      const how = end === OPEN ? 'still waiting when the recording ended' : end === GAVE_UP ? 'and left without it' : end === UNSEEN ? 'and left, or had it for less than a look' : 'and got it';
      const others = behind(i);
      return `${l.name}: ${is} waited for ${took}, from ${start}${others ? `, behind ${others}` : ''}, ${how}`;
    }
    return `${l.name}: held by ${is} for ${took}, from ${start} to ${end === OPEN ? 'the end' : about(S.to[i], S.out[i])}: ${outcomes[end]}`;
  }
  const laneOf = (i) => data.locks[S.lock[i]].lanes.find((lane) => i >= lane.first && i < lane.end);

  // behind names who had the lock during a wait, the longest first.
  function behind(wait) {
    const times = new Map();
    let looks = 0;
    for (const lane of data.locks[S.lock[wait]].lanes) {
      if (lane.waits) continue;
      for (let i = first(lane, S.from[wait]); i < lane.end && S.from[i] < S.to[wait] && looks < 20000; i++, looks++) {
        const both = Math.min(S.to[i], S.to[wait]) - Math.max(S.from[i], S.from[wait]);
        if (both <= 0 || S.client[i] === 0) continue;
        times.set(who(i), (times.get(who(i)) || 0) + both);
      }
    }
    const names = [...times].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    return names.slice(0, 3).join(', ') + (names.length > 3 ? ` and ${names.length - 3} more` : '');
  }

  // Tables, of a few rows at first.
  const rowsOf = (id) => table[id] || (window.innerWidth > 640 ? 20 : 8);
  function table(id, columns, all, none) {
    const t = $(id), most = rowsOf(id);
    t.textContent = '';
    const head = t.createTHead().insertRow();
    for (const [title, kind] of columns) {
      const th = document.createElement('th');
      th.scope = 'col'; th.textContent = title; th.className = kind === 'n' ? 'n' : '';
      head.append(th);
    }
    const body = t.createTBody();
    for (const cells of all.slice(0, most)) {
      const row = body.insertRow();
      cells.forEach((cell, c) => {
        const td = row.insertCell();
        td.dataset.of = columns[c][0]; td.className = columns[c][1] || '';
        if (cell instanceof Node) td.append(cell); else td.textContent = cell;
      });
    }
    if (all.length === 0) {
      const td = body.insertRow().insertCell();
      td.colSpan = columns.length; td.textContent = none; td.className = 'empty';
    }
    const box = t.parentElement;
    box.querySelector('.more')?.remove();
    if (all.length > most) {
      const more = document.createElement('button');
      more.type = 'button'; more.className = 'more'; more.textContent = `Show more (${most} of ${all.length})`;
      more.onclick = () => { table[id] = most * 4; tables(); box.querySelector('.more')?.focus(); };
      box.append(more);
    }
  }
  function show(i, text) {
    const b = document.createElement('button');
    b.type = 'button'; b.textContent = text; b.title = 'Show it in the timeline';
    b.onclick = () => { choose(i, true); canvas.focus(); rows.scrollIntoView({ block: 'nearest' }); };
    return b;
  }
  // longest returns the longest of the waits that match, up to a number.
  function longestWaits(most) {
    let best = [], least = -1;
    for (const l of shown) for (const lane of l.lanes) {
      if (!lane.waits) continue;
      for (let i = lane.first; i < lane.end; i++) {
        const d = S.to[i] - S.from[i];
        if (d <= least || chosen && !chosen[S.client[i]]) continue;
        best.push(i);
        if (best.length >= 2 * most) {
          best.sort((a, b) => S.to[b] - S.from[b] - S.to[a] + S.from[a]);
          best.length = most;
          least = S.to[best[most - 1]] - S.from[best[most - 1]];
        }
      }
    }
    return best.sort((a, b) => S.to[b] - S.from[b] - S.to[a] + S.from[a] || a - b).slice(0, most);
  }
  function tables() {
    const result = ['got it', '', '', '', '', 'still waiting', 'left without it', '', 'left, or had it briefly'];
    table('waits', [['Waited', 'n'], ['Lock'], ['Process'], ['Behind'], ['From', 't'], ['Result']], longestWaits(400).map((i) =>
      [long(S.to[i] - S.from[i]), data.locks[S.lock[i]].name, who(i), { i }, show(i, when(S.from[i])), result[S.how[i] & END]]).map((row, r) => {
      if (r < rowsOf('waits')) row[3] = behind(row[3].i) || 'nobody seen';
      return row;
    }), 'Nobody waited.');
    const bad = [];
    for (const l of shown) for (const lane of l.lanes) {
      if (lane.waits || l.losses === 0) continue;
      for (let i = lane.first; i < lane.end; i++) if (isBad(S.how[i] & END) && (!chosen || chosen[S.client[i]])) bad.push(i);
    }
    bad.sort((a, b) => S.to[a] - S.to[b]);
    const how = ['', 'lost: lease expired', 'lost: deleted', 'forced', 'Redis was away'];
    table('losses', [['At', 't'], ['Lock'], ['Holder'], ['What', 'bad'], ['Held for', 'n']], bad.map((i) =>
      [show(i, when(S.to[i])), data.locks[S.lock[i]].name, who(i), how[S.how[i] & END], long(S.to[i] - S.from[i])]), 'None.');
    table('marks', [['At', 't'], ['What'], ['For', 'n']], data.marks.map((m) => [when(m.from), m.what, m.to > m.from ? long(m.to - m.from) : '']), 'Redis answered all the time.');
    table('locks', [['Lock'], ['Kind'], ['Holds', 'n'], ['Held', 'n'], ['Waits', 'n'], ['Longest wait', 'n'], ['All waits', 'n'], ['Messages', 'n'], ['Lost, forced', 'n']],
      shown.map((l) => [l.name, l.kind || '–', l.holds, long(l.held), l.waits, l.waits ? long(l.longest) : '', l.waits ? long(l.waited) : '', l.unlocks || '', l.losses || '']), 'No lock matches.');
  }

  // Moving, and choosing.
  function view(from, to) {
    const least = Math.min(20, span);
    let length = Math.min(span, Math.max(least, to - from));
    if (to - from < least || to - from > span) from = (from + to - length) / 2;
    state.from = Math.min(Math.max(0, from), span - length);
    state.to = state.from + length;
    draw();
    remember();
  }
  const zoom = (by, at = (state.from + state.to) / 2) => view(at - (at - state.from) * by, at + (state.to - at) * by);
  const move = (part) => { const d = (state.to - state.from) * part; view(state.from + d, state.to + d); };
  function choose(i, zooms) {
    state.stint = i; state.lock = S.lock[i];
    $('detail').textContent = describe(i);
    const d = Math.max(S.to[i] - S.from[i], 50);
    if (zooms) view(S.from[i] - d * .6, S.to[i] + d * .6);
    else if (S.to[i] < state.from || S.from[i] > state.to) { const half = (state.to - state.from) / 2; view(S.from[i] - half, S.from[i] + half); }
    reveal();
    draw();
  }
  function reveal() {
    const r = shown.findIndex((l) => l.number === state.lock);
    if (r < 0) return;
    const h = pictureHeight();
    if (tops[r] - AXIS < rows.scrollTop) rows.scrollTop = tops[r] - AXIS;
    else if (tops[r] + rowHeight(r) > rows.scrollTop + h) rows.scrollTop = tops[r] + rowHeight(r) - h;
  }
  function chooseLock(step) {
    let r = shown.findIndex((l) => l.number === state.lock);
    r = Math.min(shown.length - 1, Math.max(0, r < 0 ? 0 : r + step));
    if (!shown[r]) return;
    const l = shown[r];
    state.lock = l.number; state.stint = -1;
    $('detail').textContent = `${l.name}: ${l.kind || 'not seen held'}, held ${l.holds} times, for ${long(l.held)}; ${l.waits} waits${l.waits ? `, the longest ${long(l.longest)}` : ''}; ${l.losses} lost or forced`;
    reveal();
    draw();
  }
  function step(forward) {
    if (state.lock < 0) chooseLock(0);
    if (state.lock < 0) return;
    const chosenNow = state.stint >= 0 && S.lock[state.stint] === state.lock;
    const [t, at] = chosenNow ? [S.from[state.stint], state.stint] : forward ? [state.from, -1] : [state.to, Infinity];
    let best = -1;
    const later = (i, than, number) => S.from[i] > than || S.from[i] === than && i > number;
    for (const lane of data.locks[state.lock].lanes) {
      let a = lane.first, b = lane.end; // the first one later than the chosen one
      while (a < b) { const m = (a + b) >> 1; if (later(m, t, at)) b = m; else a = m + 1; }
      const i = forward ? a : a - (chosenNow && at === a - 1 ? 2 : 1);
      if (i < lane.first || i >= lane.end) continue;
      if (best < 0 || (forward ? later(best, S.from[i], i) : later(i, S.from[best], best))) best = i;
    }
    if (best >= 0) choose(best, false);
  }
  function hit(px, py) {
    const y = py + rows.scrollTop, r = tops.findLastIndex((top) => top <= y);
    if (py < AXIS || r < 0) return;
    let top = tops[r] + TITLE, best = -1, near = 5;
    for (const lane of shown[r].lanes) {
      const thick = lane.waits ? WAIT : HOLD;
      if (y >= top && y < top + thick) {
        for (let i = first(lane, timeAt(px - 5)); i < lane.end && x(S.from[i]) <= px + 5; i++) {
          const away = px < x(S.from[i]) ? x(S.from[i]) - px : Math.max(0, px - x(S.to[i]));
          if (away < near) { near = away; best = i; }
        }
      }
      top += thick;
    }
    if (best >= 0) return choose(best, false);
    state.lock = shown[r].number;
    chooseLock(0);
  }
  const pointers = new Map();
  let moved = 0, pinch = 0;
  canvas.addEventListener('pointerdown', (e) => { pointers.set(e.pointerId, e); moved = 0; pinch = 0; if (e.pointerType === 'mouse') canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', (e) => {
    const before = pointers.get(e.pointerId);
    if (!before) return;
    pointers.set(e.pointerId, e);
    if (pointers.size === 2) {
      const [p, q] = [...pointers.values()], d = Math.abs(p.offsetX - q.offsetX) + 1;
      if (pinch) zoom(pinch / d, timeAt((p.offsetX + q.offsetX) / 2));
      pinch = d; moved = 99;
      return;
    }
    const d = e.offsetX - before.offsetX;
    moved += Math.abs(d);
    if (moved > 4) { const t = d / width() * (state.to - state.from); view(state.from - t, state.to - t); }
  });
  canvas.addEventListener('pointerup', (e) => { pointers.delete(e.pointerId); pinch = 0; if (moved <= 4) hit(e.offsetX, e.offsetY); });
  canvas.addEventListener('pointercancel', (e) => { pointers.delete(e.pointerId); pinch = 0; });
  canvas.addEventListener('wheel', (e) => {
    if (e.ctrlKey || e.metaKey) { e.preventDefault(); zoom(Math.exp(Math.sign(e.deltaY) * Math.min(1, Math.abs(e.deltaY) / 100) * .3), timeAt(e.offsetX)); }
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault(); move(e.deltaX / width()); }
  }, { passive: false });
  canvas.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const does = {
      ArrowLeft: () => move(-.2), ArrowRight: () => move(.2), '+': () => zoom(1 / 1.5), '=': () => zoom(1 / 1.5), '-': () => zoom(1.5), 0: () => view(0, span), Home: () => view(0, span),
      ArrowUp: () => chooseLock(-1), ArrowDown: () => chooseLock(1), n: () => step(true), N: () => step(true), p: () => step(false), P: () => step(false),
    }[e.key];
    if (does) { e.preventDefault(); does(); }
  });
  $('in').onclick = () => zoom(1 / 2);
  $('out').onclick = () => zoom(2);
  $('earlier').onclick = () => move(-.5);
  $('later').onclick = () => move(.5);
  $('all').onclick = () => view(0, span);
  rows.addEventListener('scroll', draw);
  for (const id of ['name', 'who', 'only', 'order']) $(id).addEventListener('input', filter);
  $('filter').addEventListener('submit', (e) => e.preventDefault());
  new ResizeObserver(() => { $('space').style.height = `${Math.max(0, height - pictureHeight())}px`; draw(); }).observe(rows);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); draw(); });

  // The view is in the address, so that it can be passed on. Browsers refuse to change that too often.
  let soon = 0;
  function remember() {
    clearTimeout(soon);
    soon = setTimeout(address, 200);
  }
  function address() {
    const v = new URLSearchParams();
    for (const id of ['name', 'who', 'only']) if ($(id).value) v.set(id, $(id).value);
    if ($('order').value !== 'wait') v.set('order', $('order').value);
    if (state.from > 0 || state.to < span) { v.set('from', Math.round(state.from)); v.set('to', Math.round(state.to)); }
    try { history.replaceState(null, '', `#${v}`); } catch { /* some refuse it for files */ }
  }
  const given = new URLSearchParams(location.hash.slice(1));
  for (const id of ['name', 'who', 'only', 'order']) if (given.has(id)) $(id).value = given.get(id);
  const a = Number(given.get('from')), b = Number(given.get('to'));

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  $('title').textContent = `Locks of ${data.redis}`;
  document.title = `Locks of ${data.redis}, ${day(0)}`;
  $('about').textContent = `${day(0)} ${clock(0, 0)} to ${manyDays ? `${day(span)} ` : ''}${clock(span, 0)} (${zone}), ${long(span)}; ${data.events} events${data.pattern === '*' ? '' : ` of ${data.pattern}`}`;
  for (const note of data.notes) { const li = document.createElement('li'); li.textContent = note; $('notes').append(li); }
  readColours();
  filter();
  if (b > a) view(a, b);
  root.dataset.ready = Math.round(performance.now());
})();
