// Searches the pages. The index is a script beside this one, which is loaded with the first key.
(() => {
  const base = document.currentScript.src.replace(/search\.js$/, "");
  const input = document.getElementById("search");
  const results = document.getElementById("results");
  let loading;

  const load = () => loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = base + "search-index.js";
    script.onload = () => resolve(window.searchIndex);
    script.onerror = reject;
    document.head.append(script);
  });

  // score says how well a page has all words: most in the title, less in a heading, least in the text.
  const score = (page, words) => {
    let sum = 0;
    for (const word of words) {
      const inTitle = page.title.toLowerCase().includes(word);
      const inHeading = page.headings.some(({text}) => text.toLowerCase().includes(word));
      const inText = (page.lower ??= page.text.toLowerCase()).split(word).length - 1;
      if (!inTitle && !inHeading && !inText) return 0;
      sum += (inTitle ? 40 : 0) + (inHeading ? 15 : 0) + Math.min(inText, 10);
    }
    return sum;
  };

  const show = (page, words) => {
    const heading = page.headings.find(({text}) => words.every(word => text.toLowerCase().includes(word)));
    const at = Math.max(0, page.lower.indexOf(words[0]) - 40);
    const link = document.createElement("a");
    link.href = base + page.url + (heading ? "#" + heading.id : "");
    link.setAttribute("role", "listitem");
    link.append(heading && heading.text !== page.title ? page.title + ": " + heading.text : page.title);
    const excerpt = document.createElement("small");
    excerpt.textContent = page.text.slice(at, at + 120).replace(/\s+/g, " ");
    link.append(excerpt);
    return link;
  };

  input.addEventListener("input", async () => {
    const asked = input.value;
    const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
    const pages = words.length ? await load() : [];
    if (input.value !== asked) return; // another key was pressed meanwhile
    const found = pages.map(page => [score(page, words), page]).filter(([n]) => n).sort((a, b) => b[0] - a[0]).slice(0, 12);
    const nothing = document.createElement("p");
    nothing.textContent = "Nothing found.";
    results.replaceChildren(...(words.length && !found.length ? [nothing] : found.map(([, page]) => show(page, words))));
  });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
    if (event.key === "Escape") { input.value = ""; results.replaceChildren(); }
  });
  // The menu is open where there is room for it.
  document.getElementById("menu").open = matchMedia("(min-width: 52rem)").matches;
})();
