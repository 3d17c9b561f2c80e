// The ground that views stand on: Preact and htm, as the page uses them. Text goes through Preact alone, which writes it
// as text; nothing here or above writes markup.

import { Fragment, h, render } from "./vendor/preact.js";
import { useCallback, useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { Fragment, h, render, useCallback, useEffect, useMemo, useRef, useState };
