// Puts the server's markup into its slots, sends the user's picks and requests to the server, and detects a lost server.

const LOST_AFTER_MS = 4000;
const ASK_AGAIN_MS = 3000;

// Change the children of `live` into those of `next`, keeping each node that stays, so that transitions continue and
// focus, selection and scroll position survive. Children with a data-key are matched by key, others by position.
function morph(live, next) {
  const keyed = new Map();
  for (const child of live.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let here = live.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = wanted.dataset?.key;
    let node = key === undefined ? here : keyed.get(key);
    if (node && node.nodeName === wanted.nodeName && (key !== undefined || node.dataset?.key === undefined)) {
      if (node !== here) live.insertBefore(node, here);
      update(node, wanted);
    } else {
      node = live.insertBefore(wanted, here);
    }
    here = node.nextSibling;
  }
  while (here) {
    const gone = here;
    here = here.nextSibling;
    gone.remove();
  }
}

function update(node, wanted) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.nodeValue !== wanted.nodeValue) node.nodeValue = wanted.nodeValue;
    return;
  }
  // Do not rebuild a list that the user may have open.
  if (node.nodeName === "SELECT" && node.matches(":focus")) return;
  if (node.nodeName === "INPUT" && !node.matches(":active")) node.value = wanted.getAttribute("value");
  for (const {name, value} of wanted.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  for (const {name} of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
  morph(node, wanted);
  if (node.nodeName === "SELECT") node.value = node.querySelector("option[selected]")?.value ?? node.value;
}

function show(slot, html) {
  const next = document.createElement("template");
  next.innerHTML = html;
  morph(slot, next.content);
}

function toggleTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("dsnb-theme", root.dataset.theme);
  } catch (blocked) {
    // Without storage (as in some frames) the choice is not remembered.
  }
}

function watchServer(model) {
  let heard = Date.now();
  model.on("beat", () => {
    heard = Date.now();
  });
  const look = () => {
    const lost = Date.now() - heard > LOST_AFTER_MS;
    const ended = document.querySelector("[data-ended]") !== null; // the page says so itself
    document.getElementById("lost").hidden = !lost || ended;
    document.documentElement.toggleAttribute("data-lost", lost && !ended);
    if (lost && !ended) {
      document.getElementById("lost-since").textContent = `at ${new Date(heard).toLocaleTimeString()}`;
      document.title = "lost · dsnb";
    }
    return lost;
  };
  setInterval(look, 1000);
  // A session cannot be resumed: reload the page once the server answers again.
  setInterval(async () => {
    if (!look()) return;
    const answer = await fetch(location.href, {cache: "no-store"}).catch(() => null);
    if (answer?.ok && look()) location.reload();
  }, ASK_AGAIN_MS);
}

export function render({model}) {
  for (const slot of document.querySelectorAll("[data-panel]")) {
    const name = `html_${slot.dataset.panel}`;
    const draw = () => {
      show(slot, model[name]);
      const titled = slot.querySelector("[data-title]");
      if (titled) document.title = titled.dataset.title;
    };
    model.on(name, draw);
    draw();
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-pick]");
    if (button) model.send_msg({pick: button.dataset.pick, value: button.dataset.value ?? ""});
    const act = event.target.closest("button[data-do]");
    if (act) model.send_msg({do: act.dataset.do, target: JSON.parse(act.dataset.target)});
  });
  document.addEventListener("input", (event) => {
    const slider = event.target.closest("input[data-pick]");
    if (slider) model.send_msg({pick: slider.dataset.pick, value: slider.value});
  });
  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-pick]");
    if (!select) return;
    model.send_msg({pick: select.dataset.pick, value: select.value});
    select.blur();
  });
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.documentElement.dataset.ready = "";
  document.getElementById("deaf").hidden = true;
  watchServer(model);
}
