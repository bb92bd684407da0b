"use strict";

// Seconds that the chart shows.
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
  if (number > 0 && number < 1) {
    return number.toPrecision(2);
  }
  return number >= 100 ? number.toFixed(0) : number.toFixed(1);
}

function seconds(number) {
  const whole = Math.ceil(number - 0.001); // a difference of two times is inexact
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 120) {
    return `${minutes} min ${whole % 60} s`;
  }
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function paused(state) {
  return state.pausedFor > 0 ? `for ${seconds(state.pausedFor)}` : "no";
}

function rateOf(state) {
  const of = state.perSecond === null ? "" : ` of ${rounded(state.perSecond)}`;
  return `${state.rate === null ? "\u2013" : rounded(state.rate)}${of}/s`; // a dash: not known yet
}

class Row {
  constructor(labels) {
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

  show(key) {
    const texts = [
      key.name,
      rateOf(key),
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
    // When, the rate, and the limit at that time.
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

  show(limiter) {
    const { at } = limiter;
    const slots = limiter.slots === null ? [] : [`${limiter.slots} at once`];
    const limits = [...limiter.limits, ...slots].join(", ");
    put(this.section.querySelector(".limits"), limiter.keys ? "a limit for each key" : limits || "no limit");
    this.is("rate", rateOf(limiter));
    this.is("inFlight", limiter.slots === null ? limiter.inFlight : `${limiter.inFlight} of ${limiter.slots}`);
    for (const name of ["waiting", "granted", "throttled", "retried", "rejected"]) {
      this.is(name, limiter[name]);
    }
    const held = limiter.paused ? `${limiter.paused} of ${limiter.keyCount}` : "no";
    const text = limiter.keys ? held : paused(limiter);
    this.is("paused", text).classList.toggle("paused", limiter.paused > 0);
    const shared = this.is("inUse", limiter.inUse === null ? "" : `${Math.round(100 * limiter.inUse)} %`);
    shared.parentElement.hidden = limiter.inUse === null;
    this.showStore(limiter.storeDownFor);
    if (limiter.rate !== null) {
      this.points.push([at, limiter.rate, limiter.perSecond]);
      this.draw(at, limiter);
    }
    this.showKeys(limiter);
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

  draw(at, { rate, perSecond: limit }) {
    while (this.points[0][0] < at - SHOWN) {
      this.points.shift();
    }
    const most = 1.1 * Math.max(1, ...this.points.flatMap(([, value, of]) => [value, of || 0]));
    const place = (when, value) =>
      `${(SHOWN + when - at).toFixed(2)},${(100 * (1 - value / most)).toFixed(2)}`;
    const line = (index) =>
      this.points
        .filter((point) => point[index] !== null)
        .map((point, number) => `${number ? "L" : "M"}${place(point[0], point[index])}`)
        .join("");
    this.section.querySelector("path.rate").setAttribute("d", line(1));
    this.section.querySelector("path.limit").setAttribute("d", line(2));
    put(this.section.querySelector(".most"), `${rounded(most)}/s`);
    put(this.section.querySelector(".key"), limit === null ? "" : "; dashed: the limit in the long run");
    const suffix = limit === null ? "" : `, limit ${rounded(limit)} per second`;
    this.section.querySelector("svg").setAttribute("aria-label", `now ${rounded(rate)} per second${suffix}`);
  }

  showKeys(limiter) {
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
      let name = key.name;
      while (rows.has(name)) {
        name += " "; // two keys may have the same label
      }
      const row = this.rows.get(name) || new Row(this.labels);
      row.show(key);
      rows.set(name, row);
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
      const times = pause.count > 1 ? ` (the last of ${pause.count})` : "";
      put(item, `${seconds(pause.ago)} ago: ${pause.key}, for ${seconds(pause.seconds)}${times}; ${pause.reason}`);
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

function card(name) {
  if (!byName.has(name)) {
    byName.set(name, new Card(name));
  }
  return byName.get(name);
}

const events = new EventSource("/events");
// The first event of each stream: also after a pause of the connection the chart has no gap.
events.addEventListener("history", (message) => {
  JSON.parse(message.data).forEach(({ name, points }) => {
    card(name).points = points;
  });
});
events.onmessage = (message) => {
  const { facts, limiters } = JSON.parse(message.data);
  say("live", false);
  showFacts(facts);
  limiters.forEach((limiter) => card(limiter.name).show(limiter));
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
