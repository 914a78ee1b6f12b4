package resources

import (
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// used is the usage of a box in the API.
type used struct {
	CPU   int64 `json:"total_cpu_ns"`
	Usage struct {
		MemoryPeakBytes int64  `json:"memory_peak_bytes"`
		OOMKills        uint64 `json:"oom_kills"`
		BytesIn         uint64 `json:"bytes_in"`
		BytesOut        uint64 `json:"bytes_out"`
		DiskBytes       int64  `json:"disk_bytes"`
		DiskCountedAt   int64  `json:"disk_counted_at"`
	}
}

func usedBy(w *harness.World, box string) (u used) {
	w.T.Helper()
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box), &u); err != nil {
		w.T.Fatal(err)
	}
	return u
}

// atLeast waits until a figure reaches a value, because readings are up to a second old.
func atLeast(w *harness.World, box string, what string, want int64, figure func(used) int64) used {
	w.T.Helper()
	var u used
	w.Until(what, func() bool {
		u = usedBy(w, box)
		return figure(u) >= want
	})
	return u
}

func cpuOf(u used) int64 { return u.CPU }

// burn uses at least the given CPU time.
func burn(w *harness.World, box string, atLeast time.Duration) {
	w.T.Helper()
	w.MustSh(box, `python3 -c 'import time
while time.process_time() < `+atLeast.String()[:len(atLeast.String())-1]+`: pass'`)
}

// CPU time counts the box's processes, and does not increase while the box is idle or paused. The total survives a
// stopped or killed gateway.
func TestCPUTimeIsMetered(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	before := usedBy(w, box).CPU
	burn(w, box, 2*time.Second)
	after := atLeast(w, box, "the CPU time of a command is counted", before+2e9, cpuOf).CPU
	w.MustSh(box, `sh -c 'while :; do :; done' >/dev/null 2>&1 &`)
	atLeast(w, box, "what runs in the background is counted", after+5e8, cpuOf)
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
		t.Fatal(err)
	}
	var paused int64
	w.UntilEvery(1100*time.Millisecond, "a paused box uses nothing", func() bool { // a reading is up to a second old
		last := paused
		paused = usedBy(w, box).CPU
		return paused == last
	})
	w.Kill()
	w.StartIfStopped()
	atLeast(w, box, "a gateway that was killed goes on from there", paused, cpuOf)
	if now := usedBy(w, box).CPU; now != paused {
		t.Errorf("%d ns after a restart, %d before", now, paused)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil); err != nil {
		t.Fatal(err)
	}
	atLeast(w, box, "what it does from then on is added", paused+1e8, cpuOf)
	if w.Metric("boxgate_boxes_cpu_seconds_total") <= 0 {
		t.Error("the metric counts nothing")
	}
}

// Bytes are counted once, whether the kernel or the proxy forwards them, in their direction.
func TestBytesAreMetered(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	w := harness.Shared(t)
	for name, fetch := range map[string]struct {
		policy map[string]any
		url    string
	}{
		"kernel": {map[string]any{"mode": "allow-all"}, "http://" + w.V4("www.example.com").String()},
		"proxy":  {harness.Custom("www.example.com"), "https://www.example.com"},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // it kills the gateway
			w := w.On(t)
			box := w.Create(map[string]any{"network_policy": fetch.policy})
			before := usedBy(w, box).Usage
			w.MustSh(box, "head -c 8388608 /dev/zero | curl -sSk -o /dev/null --data-binary @- -H 'Host: www.example.com' "+fetch.url+"/echo")
			u := atLeast(w, box, "bytes from the box are counted", int64(before.BytesOut)+size, func(u used) int64 { return int64(u.Usage.BytesOut) }).Usage
			// Packet headers, retransmissions and acknowledgements count as well, but only once.
			if out := u.BytesOut - before.BytesOut; out > size*3/2 {
				t.Errorf("%d bytes out for %d sent", out, size)
			}
			w.Kill()
			w.StartIfStopped()
			if again := usedBy(w, box).Usage; again.BytesOut < u.BytesOut || again.BytesIn < u.BytesIn || again.BytesOut > u.BytesOut+size/2 {
				t.Errorf("after a restart %+v, before %+v", again, u)
			}
		})
	}
}

// A box's writes to its root are counted in the background, and memory has a peak.
func TestDiskAndMemoryAreMetered(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	w.MustSh(box, "head -c 67108864 /dev/urandom >big; sync big; python3 -c 'x = bytearray(100 << 20)'")
	atLeast(w, box, "the highest mark of memory", 100<<20, func(u used) int64 { return u.Usage.MemoryPeakBytes })
	w.Kill() // files are counted at the start, and not soon again
	w.StartIfStopped()
	u := atLeast(w, box, "files are counted", 64<<20, func(u used) int64 { return u.Usage.DiskBytes })
	if u.Usage.DiskBytes > 80<<20 {
		t.Errorf("%d bytes on disk", u.Usage.DiskBytes)
	}
	w.Until("the sum is a metric", func() bool { return w.Metric("boxgate_boxes_disk_bytes") >= 64<<20 })
	if strings.Contains(string(w.Metrics()), box) {
		t.Error("a metric has the ID of a box")
	}
}
