package exec

import (
	"net/http"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// runsView is the response of listRuns.
type runsView struct {
	Runs []history.RunView `json:"runs"`
}

func (e *Endpoints) listRuns(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: runsView{e.History.Runs(box.ID)}}, nil
}

func (e *Endpoints) getRun(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	run, ok := e.History.Find(box.ID, r.PathValue("run"))
	if !ok {
		return rest.Reply{}, noRun(box.ID, r)
	}
	return rest.Reply{Body: run}, nil
}

// noRun returns the error for a run that does not exist or is no longer in the history.
func noRun(box policy.BoxID, r *http.Request) error {
	return api.Errorf(api.ErrNotFound, "box %s has no run %q; only the latest runs since the gateway's start are kept", box, problem.Clip(r.PathValue("run")))
}

func (e *Endpoints) cancelRun(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	view, ok := e.History.Cancel(box.ID, r.PathValue("run"))
	if !ok {
		return rest.Reply{}, noRun(box.ID, r)
	}
	return rest.Reply{Body: view}, nil
}

// logsView is the response of getLogs.
type logsView struct {
	Logs []history.LogEntry `json:"logs"`
}

// logsQuery selects a page of the log.
type logsQuery struct {
	Offset int  `json:"offset,omitempty" doc:"number of lines to skip" min:"0"`
	Limit  *int `json:"limit,omitempty" doc:"maximum number of lines; absent: all lines in memory, at most 1000" min:"0" example:"50"`
}

func (e *Endpoints) getLogs(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var query logsQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	past, err := e.Events.RecentEvents(r.Context(), api.EventFilter{Box: box.ID})
	if err != nil {
		return rest.Reply{}, err
	}
	logs := withRequests(e.History.Logs(box.ID, 0, history.MaxLogs), past.Events)
	logs = logs[min(query.Offset, len(logs)):]
	if query.Limit != nil {
		logs = logs[:min(*query.Limit, len(logs))]
	}
	return rest.Reply{Body: logsView{logs}}, nil
}
