"use strict";

// Seconds over which a rate is averaged, and seconds that the chart shows.
const AVERAGED = 5;
const SHOWN = 120;

const byName = new Map();
const state = document.getElementById("state");

function put(element, text) {
  // Unchanged text is not set: a selection stays, and a screen reader stays silent.
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function rounded(number) {
  return number >= 100 ? number.toFixed(0) : number.toFixed(1);
}

function seconds(number) {
  if (number < 60) {
    return `${Math.ceil(number)} s`;
  }
  const whole = Math.ceil(number);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

function paused(state) {
  return state.pausedFor > 0 ? `for ${seconds(state.pausedFor)}` : "no";
}

// The rate at which a counter grows.
class Speed {
  constructor() {
    this.marks = [];
  }

  mark(at, count) {
    this.marks.push([at, count]);
    while (this.marks.length > 2 && this.marks[1][0] <= at - AVERAGED) {
      this.marks.shift();
    }
    const [since, before] = this.marks[0];
    return at > since ? (count - before) / (at - since) : 0;
  }
}

class Row {
  constructor(labels) {
    this.speed = new Speed();
    this.row = document.createElement("tr");
    this.row.setAttribute("role", "row");
    this.cells = labels.map((label, index) => {
      const cell = document.createElement(index ? "td" : "th");
      cell.setAttribute("role", index ? "cell" : "rowheader");
      if (index) {
        cell.dataset.label = label;
      } else {
        cell.scope = "row";
      }
      this.row.append(cell);
      return cell;
    });
  }

  show(at, key) {
    const texts = [
      key.name,
      `${rounded(this.speed.mark(at, key.tokens))}/s`,
      key.inFlight,
      key.waiting,
      key.granted,
      key.throttled,
      key.retried,
      paused(key),
    ];
    texts.forEach((text, index) => put(this.cells[index], String(text)));
    this.cells.at(-1).classList.toggle("paused", key.pausedFor > 0);
  }
}

class Card {
  constructor(name) {
    const copy = document.getElementById("limiter").content.cloneNode(true);
    this.section = copy.querySelector("section");
    this.section.querySelector("h2").textContent = name;
    this.speed = new Speed();
    this.points = [];
    this.rows = new Map();
    this.labels = [...this.section.querySelectorAll("thead th")].map((each) => each.textContent);
    for (const [selector, role] of [
      ["table", "table"],
      ["thead, tbody", "rowgroup"],
      ["thead tr", "row"],
      ["thead th", "columnheader"],
    ]) {
      this.section.querySelectorAll(selector).forEach((each) => each.setAttribute("role", role));
    }
    this.lastPause = null;
    document.getElementById("limiters").append(copy);
  }

  is(name, text) {
    const cell = this.section.querySelector(`[data-is="${name}"]`);
    put(cell, String(text));
    return cell;
  }

  show(at, limiter) {
    const rate = this.speed.mark(at, limiter.tokens);
    const slots = limiter.slots === null ? [] : [`${limiter.slots} at once`];
    const limits = [...limiter.limits, ...slots].join(", ");
    put(this.section.querySelector(".limits"), limiter.keys ? "a limit for each key" : limits || "no limit");
    const of = limiter.perSecond === null ? "" : ` of ${rounded(limiter.perSecond)}`;
    this.is("rate", `${rounded(rate)}${of}/s`);
    this.is("inFlight", limiter.slots === null ? limiter.inFlight : `${limiter.inFlight} of ${limiter.slots}`);
    for (const name of ["waiting", "granted", "throttled", "retried", "rejected"]) {
      this.is(name, limiter[name]);
    }
    const held = (limiter.keys || []).filter((key) => key.pausedFor > 0).length;
    const text = limiter.keys ? (held ? `${held} of ${limiter.keyCount}` : "no") : paused(limiter);
    this.is("paused", text).classList.toggle("paused", held > 0 || limiter.pausedFor > 0);
    this.showStore(limiter.storeDownFor);
    this.draw(at, rate, limiter.perSecond);
    this.showKeys(at, limiter);
    this.showPauses(at, limiter.pauses);
  }

  showStore(downFor) {
    const line = this.section.querySelector(".store");
    if (line.hidden !== (downFor === null)) {
      line.hidden = downFor === null;
      const name = this.section.querySelector("h2").textContent;
      put(document.getElementById("news"), `${name}: the store ${line.hidden ? "answers again" : "does not answer"}`);
    }
    put(line, line.hidden ? "" : `The store has not answered for ${seconds(downFor)}.`);
  }

  draw(at, rate, limit) {
    // The average over a short time would be a peak.
    if (at - this.speed.marks[0][0] >= AVERAGED / 2) {
      this.points.push([at, rate]);
    }
    if (!this.points.length) {
      return;
    }
    while (this.points[0][0] < at - SHOWN) {
      this.points.shift();
    }
    const most = 1.1 * Math.max(limit || 0, ...this.points.map((point) => point[1]), 1);
    const height = (value) => (100 * (1 - value / most)).toFixed(2);
    const places = this.points.map(([when, value]) => `${(SHOWN + when - at).toFixed(2)},${height(value)}`);
    this.section.querySelector("path.rate").setAttribute("d", `M${places.join("L")}`);
    const line = limit === null ? "" : `M0,${height(limit)}H${SHOWN}`;
    this.section.querySelector("path.limit").setAttribute("d", line);
    put(this.section.querySelector(".most"), `${rounded(most)}/s`);
    put(this.section.querySelector(".key"), limit === null ? "" : "; dashed: the limit in the long run");
    const suffix = limit === null ? "" : `, limit ${rounded(limit)} per second`;
    this.section.querySelector("svg").setAttribute("aria-label", `now ${rounded(rate)} per second${suffix}`);
  }

  showKeys(at, limiter) {
    const hosts = this.section.querySelector(".hosts");
    hosts.hidden = !limiter.keys || !limiter.keys.length;
    if (hosts.hidden) {
      return;
    }
    const shown = limiter.keys.length;
    const more = limiter.keyCount > shown ? `, the ${shown} of ${limiter.keyCount} that were busy last` : "";
    put(hosts.querySelector("h3"), `Keys${more}`);
    const rows = new Map();
    limiter.keys.forEach((key) => {
      const row = this.rows.get(key.name) || new Row(this.labels);
      row.show(at, key);
      rows.set(key.name, row);
    });
    const body = hosts.querySelector("tbody");
    const wanted = [...rows.values()].map((row) => row.row);
    if (wanted.length !== body.children.length || wanted.some((row, index) => row !== body.children[index])) {
      body.replaceChildren(...wanted);
    }
    this.rows = rows;
  }

  showPauses(at, pauses) {
    const box = this.section.querySelector(".pauses");
    box.hidden = !pauses.length;
    const list = box.querySelector("ol");
    while (list.children.length > pauses.length) {
      list.lastChild.remove();
    }
    pauses.forEach((pause, index) => {
      const item = list.children[index] || list.appendChild(document.createElement("li"));
      put(item, `${seconds(pause.ago)} ago: ${pause.key}, for ${seconds(pause.seconds)}; ${pause.reason}`);
    });
    if (pauses.length) {
      const began = at - pauses[0].ago;
      if (this.lastPause === null || began > this.lastPause + 0.001) {
        const { key, seconds: length } = pauses[0];
        put(document.getElementById("news"), `${key} is paused for ${seconds(length)}`);
      }
      this.lastPause = began;
    }
  }
}

function showFacts(facts) {
  const list = document.getElementById("facts");
  const names = Object.keys(facts);
  list.hidden = !names.length;
  names.forEach((name, index) => {
    let pair = list.children[index];
    if (!pair) {
      pair = document.createElement("div");
      pair.append(document.createElement("dt"), document.createElement("dd"));
      list.append(pair);
    }
    put(pair.children[0], name);
    put(pair.children[1], facts[name]);
  });
  while (list.children.length > names.length) {
    list.lastChild.remove();
  }
}

function say(text, lost) {
  put(state, text);
  state.classList.toggle("lost", lost);
}

const events = new EventSource("/events");
events.onmessage = (message) => {
  const { at, facts, limiters } = JSON.parse(message.data);
  say("live", false);
  showFacts(facts);
  limiters.forEach((limiter) => {
    if (!byName.has(limiter.name)) {
      byName.set(limiter.name, new Card(limiter.name));
    }
    byName.get(limiter.name).show(at, limiter);
  });
};
events.addEventListener("end", () => {
  events.close();
  say("ended: the program no longer serves this page", true);
});
events.onerror = () => {
  if (events.readyState === EventSource.CLOSED) {
    say("lost: load the page again", true);
  } else {
    say("lost: reconnecting", true);
  }
};
