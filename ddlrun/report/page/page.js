// Show one rank: its rows, its lines, its cores. Without this script all ranks are shown.
(() => {
  const bar = document.getElementById("filter");
  const choice = bar.querySelector("select");
  const said = bar.querySelector("output");
  const every = (what) => [...document.querySelectorAll(what)];

  function show(rank) {
    const row = rank === "" ? null : document.querySelector(`tr[data-rank="${rank}"][data-local]`);
    for (const one of every("[data-rank]")) one.classList.toggle("off", rank !== "" && one.dataset.rank !== rank);
    for (const one of every("button[data-pick]")) one.setAttribute("aria-pressed", one.dataset.pick === rank);
    every("svg.placement > g").forEach((group, number) => {
      for (const core of group.querySelectorAll(".core")) {
        const mine = row && row.dataset.group === `${number}` && core.dataset.local.split(" ").includes(row.dataset.local);
        core.classList.toggle("off", row !== null && !mine);
      }
    });
    choice.value = rank;
    said.textContent = row ? row.dataset.said : "";
  }

  document.addEventListener("click", (event) => {
    const picked = event.target.closest("[data-pick]");
    if (picked) show(picked.dataset.pick === choice.value ? "" : picked.dataset.pick);
  });
  choice.addEventListener("change", () => show(choice.value));
  bar.querySelector("button").addEventListener("click", () => show(""));
  bar.hidden = false;
})();
