// The pages of a run: finds the run of the place, draws the page of the place.
import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { followKeys } from "./keys";
import { useLoaded } from "./load";
import type { RunPage } from "./model";
import { ComparePage } from "./pages/compare";
import { EnginesPage } from "./pages/engines";
import { FlowPage } from "./pages/flow";
import { ForksPage } from "./pages/forks";
import { ConversationPage } from "./pages/game";
import { FilterHelp, RunOverview } from "./pages/run";
import { href, usePlace } from "./router";
import { Notice, Shell, type PageProps } from "./shell";
import "./style.css";
import "./pages/run.css";
import { transport } from "./transport";

function App(): JSX.Element {
  const place = usePlace();
  const loaded = useLoaded(() => transport.run(place.run), [place.run]);
  const [live, setLive] = useState<{ run: string; page: RunPage } | null>(null);
  const [isConnected, setConnected] = useState(true);
  const [trouble, setTrouble] = useState("");
  useEffect(
    () =>
      transport.listen(place.run, {
        standing: (page) => setLive({ run: place.run, page }),
        connected: setConnected,
        trouble: setTrouble,
      }),
    [place.run],
  );
  const page = live?.run === place.run ? live.page : loaded.value;
  useEffect(() => {
    document.title = page ? `${page.name} – mac_runner` : "mac_runner";
  }, [page?.name]);
  return (
    <Shell place={place} page={page} isConnected={isConnected} help={place.page === "run" ? <FilterHelp /> : null}>
      {trouble && page && (
        <p class="trouble bad" role="alert">
          {trouble}
        </p>
      )}
      {loaded.error && !page ? (
        <Notice title="This run cannot be shown" tone="bad">
          <p>{loaded.error}</p>
        </Notice>
      ) : page ? (
        <Page place={place} page={page} />
      ) : (
        <Notice title="Loading…" tone="quiet" />
      )}
    </Shell>
  );
}

function Page(props: PageProps): JSX.Element {
  switch (props.place.page) {
    case "run":
      return <RunOverview {...props} />;
    case "c":
      return <ConversationPage {...props} />;
    case "compare":
      return <ComparePage {...props} />;
    case "forks":
      return <ForksPage {...props} />;
    case "engines":
      return <EnginesPage {...props} />;
    case "flow":
      return <FlowPage {...props} />;
    case "unknown":
      return (
        <Notice title="There is no such page">
          <p>
            <a href={href({})}>Go to the run</a>
          </p>
        </Notice>
      );
  }
}

followKeys();
const root = document.getElementById("app");
if (root) render(<App />, root);
