package boxes

import (
	"context"
	"math"
	"net/http"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/policy"
)

// Samples has the use of boxes over time.
type Samples interface {
	// UsageSamples returns the samples of a launched box after a time. An attached box is an ErrConflict.
	UsageSamples(ctx context.Context, id policy.BoxID, after time.Time) (api.UsageSamples, error)
}

// samplesQuery selects samples.
type samplesQuery struct {
	Since int64 `json:"since,omitempty" doc:"Unix seconds: only later samples; absent: all, which are those of an hour at most"`
}

// samplesView are samples in JSON.
type samplesView struct {
	IntervalSeconds float64      `json:"interval_seconds"`
	CPUs            float64      `json:"cpus" doc:"CPUs that the box may use"`
	MemoryTotal     int64        `json:"memory_total_bytes"`
	DiskTotal       int64        `json:"disk_total_bytes,omitempty" doc:"absent: the disk is not limited"`
	Samples         []sampleView `json:"samples" doc:"the oldest first; none from the time that the box was paused"`
}

// sampleView is the use of a box in the interval before a time.
type sampleView struct {
	At         float64 `json:"at" doc:"Unix seconds"`
	CPUPercent float64 `json:"cpu_percent" doc:"of all CPUs of the box together, on average since the sample before"`
	Memory     int64   `json:"memory_bytes" doc:"including memory_cache_bytes"`
	Cache      int64   `json:"memory_cache_bytes" doc:"files in memory, which the kernel takes back if it needs the memory"`
	Disk       int64   `json:"disk_bytes" doc:"bytes that the box has written to its root, as last counted"`
}

func (e *Endpoints) samplesRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/usage/samples", ID: "listUsageSamples", Summary: "CPU, memory and disk use of a box in the last hour, a sample every few seconds", Query: reflect.TypeFor[samplesQuery](), Response: reflect.TypeFor[samplesView](), Handle: e.listSamples},
	}
}

func (e *Endpoints) listSamples(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q samplesQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	found, err := e.Samples.UsageSamples(r.Context(), box.ID, time.Unix(q.Since, 0))
	if err != nil {
		return rest.Reply{}, err
	}
	view := samplesView{IntervalSeconds: found.Interval.Seconds(), CPUs: found.CPUs, MemoryTotal: found.Memory, DiskTotal: found.Disk, Samples: []sampleView{}}
	for _, s := range found.Samples {
		view.Samples = append(view.Samples, sampleView{
			At: float64(s.At.UnixMilli()) / 1000, CPUPercent: percent(s.CPUs, found.CPUs), Memory: s.Memory, Cache: s.Cache, Disk: s.Disk,
		})
	}
	return rest.Reply{Body: view}, nil
}

// percent returns a share in percent, in hundredths; 0 if the whole is 0.
func percent(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return math.Round(part/whole*10000) / 100
}
