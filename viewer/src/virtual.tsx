// A window on many rows of equal height: only those in view are drawn.
import { type RefObject } from "preact";
import { useCallback, useLayoutEffect, useRef, useState } from "preact/hooks";

/** Browsers draw no element that is much higher than this; beyond, the scroll bar is scaled. */
const HEIGHT_MAX = 600_000 * 24;
const BEYOND = 8;

/** Rows `first` to `last` (excluded) are drawn between spaces of `before` and `after` pixels. */
export interface RowWindow {
  readonly ref: RefObject<HTMLDivElement | null>;
  readonly first: number;
  readonly last: number;
  readonly before: number;
  readonly after: number;
  /** Scrolls a row into view. */
  show(row: number): void;
}

/** Follows the scrolling of the element that gets `ref`; `head` pixels at its top stay in place. */
export function useWindow(count: number, rowHeight: number, head = 0): RowWindow {
  const ref = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const box = ref.current;
    if (!box) return;
    const follow = (): void =>
      setView((old) =>
        old.top === box.scrollTop && old.height === box.clientHeight
          ? old
          : { top: box.scrollTop, height: box.clientHeight },
      );
    const observer = new ResizeObserver(follow);
    observer.observe(box);
    box.addEventListener("scroll", follow, { passive: true });
    return () => {
      observer.disconnect();
      box.removeEventListener("scroll", follow);
    };
  }, [ref.current]);
  const place = placed(count, rowHeight, view.top, Math.max(0, view.height - head));
  const show = useCallback(
    (row: number) => {
      const box = ref.current;
      if (!box) return;
      const height = box.clientHeight - head;
      const total = Math.min(count * rowHeight, HEIGHT_MAX);
      const scale = count * rowHeight > total ? (total - height) / (count * rowHeight - height) : 1;
      const top = box.scrollTop / scale;
      if (row * rowHeight < top) box.scrollTop = row * rowHeight * scale;
      else if ((row + 1) * rowHeight > top + height) box.scrollTop = ((row + 1) * rowHeight - height) * scale;
    },
    [count, rowHeight, head],
  );
  return { ref, show, ...place };
}

/** Which rows are in view, and the spaces around them. */
export function placed(
  count: number,
  rowHeight: number,
  scrollTop: number,
  height: number,
): { first: number; last: number; before: number; after: number } {
  const full = count * rowHeight;
  const total = Math.min(full, HEIGHT_MAX);
  // The top in unscaled pixels, and how far the drawn rows are moved for it.
  const top = full > total ? (scrollTop / Math.max(1, total - height)) * (full - height) : scrollTop;
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - BEYOND, count));
  const last = Math.min(count, Math.ceil((top + height) / rowHeight) + BEYOND);
  const before = Math.max(0, Math.min(first * rowHeight - (top - scrollTop), total - (last - first) * rowHeight));
  return { first, last, before, after: Math.max(0, total - before - (last - first) * rowHeight) };
}
