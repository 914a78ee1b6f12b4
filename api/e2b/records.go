package e2b

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api/problem"
)

// metricView is the use of resources at one time.
type metricView struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// usageSamples are the use of a box over time in boxgate's own API.
type usageSamples struct {
	Memory  int64 `json:"memory_total_bytes"`
	Disk    int64 `json:"disk_total_bytes"`
	Samples []struct {
		At         float64 `json:"at"`
		CPUPercent float64 `json:"cpu_percent"`
		Memory     int64   `json:"memory_bytes"`
		Cache      int64   `json:"memory_cache_bytes"`
		Disk       int64   `json:"disk_bytes"`
	} `json:"samples"`
}

// readMetrics returns the use of a box after a time in seconds, oldest first.
func (e *Endpoints) readMetrics(r *http.Request, b box, since int64) ([]metricView, error) {
	path := boxPath(b.ID, "usage", "samples")
	if since > 0 {
		path += "?since=" + strconv.FormatInt(since, 10)
	}
	var got usageSamples
	if err := e.own(r, http.MethodGet, path, nil, &got); err != nil {
		return nil, err
	}
	list, cpus := []metricView{}, sizes[b.Size].cpus
	for _, s := range got.Samples {
		at := time.UnixMilli(int64(s.At * 1000)).UTC()
		list = append(list, metricView{
			Timestamp: at, TimestampUnix: at.Unix(), CPUCount: cpus, CPUUsedPct: s.CPUPercent, MemUsed: s.Memory - s.Cache, MemCache: s.Cache, MemTotal: got.Memory,
			DiskUsed: s.Disk, DiskTotal: got.Disk,
		})
	}
	return list, nil
}

// metrics shows the use of resources of a sandbox, of the last hour at most.
func (e *Endpoints) metrics(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "start", "end")
	if err != nil {
		return 0, nil, err
	}
	start, errStart := secondsOf(q.Get("start"), 0)
	end, errEnd := secondsOf(q.Get("end"), 1<<62)
	if errStart != nil || errEnd != nil || start > end {
		return 0, nil, problem.Refuse(http.StatusBadRequest, "start and end must be times in seconds, in order")
	}
	b, err := e.boxOf(r)
	if err != nil {
		return 0, nil, err
	}
	list, err := e.readMetrics(r, b, start-1)
	list = slices.DeleteFunc(list, func(m metricView) bool { return m.TimestampUnix < start || m.TimestampUnix > end })
	return http.StatusOK, list, err
}

// secondsOf reads a time in seconds.
func secondsOf(text string, absent int64) (int64, error) {
	if text == "" {
		return absent, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// maxMetrics is the number of sandboxes whose use one call shows.
const maxMetrics = 100

// allMetrics shows the latest use of several sandboxes. Sandboxes that the key does not see are left out.
func (e *Endpoints) allMetrics(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "sandbox_ids")
	if err != nil {
		return 0, nil, err
	}
	asked := map[string]bool{}
	for id := range strings.SplitSeq(q.Get("sandbox_ids"), ",") {
		asked[id] = true
	}
	if len(asked) > maxMetrics {
		return 0, nil, problem.Refuse(http.StatusBadRequest, "sandbox_ids has more than %d sandboxes", maxMetrics)
	}
	var all []box
	if err := e.own(r, http.MethodGet, "/v2/box", nil, &all); err != nil {
		return 0, nil, err
	}
	views := map[string]metricView{}
	for _, b := range all {
		if !asked[b.ID] || b.state() == "" {
			continue
		}
		list, err := e.readMetrics(r, b, time.Now().Add(-time.Minute).Unix())
		switch {
		case hasStatus(err, http.StatusNotFound) || hasStatus(err, http.StatusConflict): // deleted meanwhile, or attached
		case err != nil:
			return 0, nil, err
		case len(list) > 0:
			views[b.ID] = list[len(list)-1]
		}
	}
	return http.StatusOK, map[string]any{"sandboxes": views}, nil
}

// logLine is a line of the log of a box in boxgate's own API.
type logLine struct {
	Timestamp int64  `json:"timestamp"`
	Level     string `json:"level"`
	Source    string `json:"source"`
	Message   string `json:"message"`
}

// logEntry is a line of the log of a sandbox.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// readLogs returns the log of a box, oldest line first.
func (e *Endpoints) readLogs(r *http.Request) (entries []logEntry, err error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	var got struct {
		Logs []logLine `json:"logs"`
	}
	if err := e.own(r, http.MethodGet, boxPath(id, "logs"), nil, &got); err != nil {
		if hasStatus(err, http.StatusNotFound) {
			err = noBox(id)
		}
		return nil, err
	}
	entries = []logEntry{}
	for _, l := range got.Logs {
		entries = append(entries, logEntry{time.Unix(l.Timestamp, 0).UTC(), l.Level, l.Message, map[string]string{"source": l.Source}})
	}
	return entries, nil
}

// limitOf reads the number of lines that a client wants.
func limitOf(text string) (int, error) {
	if text == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, problem.Refuse(http.StatusBadRequest, "limit must be a number")
	}
	return min(n, maxPage), nil
}

// logs shows the log of a sandbox in the first version's form.
func (e *Endpoints) logs(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "start", "limit")
	if err != nil {
		return 0, nil, err
	}
	start, errStart := secondsOf(q.Get("start"), 0)
	limit, err := limitOf(q.Get("limit"))
	if err != nil || errStart != nil {
		return 0, nil, problem.Refuse(http.StatusBadRequest, "start must be a time in milliseconds, and limit a number")
	}
	all, err := e.readLogs(r)
	if err != nil {
		return 0, nil, err
	}
	lines, entries := []map[string]any{}, []logEntry{}
	for _, l := range all {
		if l.Timestamp.UnixMilli() >= start && len(entries) < limit {
			lines, entries = append(lines, map[string]any{"timestamp": l.Timestamp, "line": l.Message}), append(entries, l)
		}
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": entries}, nil
}

// logsV2 shows the log of a sandbox from a time on, forwards or backwards.
func (e *Endpoints) logsV2(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "cursor", "limit", "direction", "level", "search")
	if err != nil {
		return 0, nil, err
	}
	backward := q.Get("direction") != "forward"
	cursor, errCursor := secondsOf(q.Get("cursor"), map[bool]int64{false: 0, true: 1 << 62}[backward])
	limit, err := limitOf(q.Get("limit"))
	if err != nil || errCursor != nil {
		return 0, nil, problem.Refuse(http.StatusBadRequest, "cursor must be a time in milliseconds, and limit a number")
	}
	all, err := e.readLogs(r)
	if err != nil {
		return 0, nil, err
	}
	entries := []logEntry{}
	for i := range all {
		l := all[i]
		if backward {
			l = all[len(all)-1-i]
		}
		at := l.Timestamp.UnixMilli()
		if (backward && at > cursor) || (!backward && at < cursor) || (q.Get("level") != "" && l.Level != q.Get("level")) || !strings.Contains(l.Message, q.Get("search")) {
			continue
		}
		if entries = append(entries, l); len(entries) == limit {
			break
		}
	}
	return http.StatusOK, map[string]any{"logs": entries}, nil
}
