// Data that a page waits for.
import { useEffect, useState } from "preact/hooks";

/** What there is of a value that is asked for. While another is asked for, the one before it stays. */
export interface Loaded<T> {
  readonly value: T | null;
  readonly error: string;
  readonly isLoading: boolean;
}

/** Asks again when one of `what` changes; an answer that comes too late is dropped. */
export function useLoaded<T>(ask: () => Promise<T>, what: readonly unknown[]): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T>>({ value: null, error: "", isLoading: true });
  useEffect(() => {
    let isWanted = true;
    setLoaded((before) => (before.isLoading ? before : { ...before, isLoading: true }));
    ask().then(
      (value) => isWanted && setLoaded({ value, error: "", isLoading: false }),
      (fault: unknown) => isWanted && setLoaded({ value: null, error: reason(fault), isLoading: false }),
    );
    return () => {
      isWanted = false;
    };
  }, what);
  return loaded;
}

/** An error as a sentence. */
export function reason(fault: unknown): string {
  return fault instanceof Error ? fault.message : String(fault);
}

/** What an object has under a key of its own: a participant may be called `__proto__` or `constructor`. */
export function own<T>(record: Readonly<Record<string, T>> | undefined, key: string): T | undefined {
  return record !== undefined && Object.hasOwn(record, key) ? record[key] : undefined;
}
