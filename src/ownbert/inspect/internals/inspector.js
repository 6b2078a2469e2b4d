const inspector = (() => {
{{ source("inspect/internals/words.js") }}
{{ source("inspect/internals/view.js") }}
{{ source("inspect/internals/attention.js") }}
{{ source("inspect/internals/arcs.js") }}
{{ source("inspect/internals/matrix.js") }}
{{ source("inspect/internals/layers.js") }}
return { heat, make, mode, picture, save, signed, sized, text, unpacked, observationView };
})();
