// Selection of one rank: its rows, its lines, its cores. Without this script all ranks are shown.
(() => {
  const bar = document.getElementById("filter");
  const choice = bar.querySelector("select");
  const summary = bar.querySelector("output");
  const every = (selector) => [...document.querySelectorAll(selector)];

  function show(rank) {
    const row = rank === "" ? null : document.querySelector(`tr[data-rank="${rank}"][data-local]`);
    for (const item of every("[data-rank]")) item.classList.toggle("off", rank !== "" && item.dataset.rank !== rank);
    for (const button of every("button[data-pick]")) button.setAttribute("aria-pressed", button.dataset.pick === rank);
    every("svg.placement > g").forEach((group, number) => {
      for (const core of group.querySelectorAll(".core")) {
        const selected = row && row.dataset.group === `${number}` && core.dataset.local.split(" ").includes(row.dataset.local);
        core.classList.toggle("off", row !== null && !selected);
      }
    });
    choice.value = rank;
    summary.textContent = row ? row.dataset.summary : "";
  }

  document.addEventListener("click", (event) => {
    const picked = event.target.closest("[data-pick]");
    if (picked) show(picked.dataset.pick === choice.value ? "" : picked.dataset.pick);
  });
  choice.addEventListener("change", () => show(choice.value));
  bar.querySelector("button").addEventListener("click", () => show(""));
  bar.hidden = false;
})();
