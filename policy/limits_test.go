package policy

import (
	"encoding/json"
	"testing"
)

func TestLimitsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	want := Limits{LimitConnections: 7, LimitSend: Unlimited, LimitMemory: 16 << 20}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if text := `{"connections":7,"memory":16777216,"send_bytes_per_second":0}`; string(data) != text {
		t.Errorf("they are written as %s, want %s", data, text)
	}
	var got Limits
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("they are read as %v (%v), want %v", got, err, want)
	}
	if err := json.Unmarshal([]byte(`{"connections":3,"of a later version":1}`), &got); err != nil || got != (Limits{LimitConnections: 3}) {
		t.Errorf("an unknown one makes them %v (%v)", got, err)
	}
	if json.Unmarshal([]byte(`{"connections":0}`), &got) == nil {
		t.Error("no connections at all can be stored")
	}
}

func TestLimitsAreMergedTowardsLess(t *testing.T) {
	t.Parallel()
	host := Limits{LimitConnections: 100, LimitStreams: 100, LimitSend: Unlimited, LimitReceive: 1 << 20, LimitQuota: 1 << 20}
	own := Limits{LimitConnections: 10, LimitStreams: 1000, LimitSend: 1 << 20, LimitReceive: Unlimited}
	want := Limits{LimitConnections: 10, LimitStreams: 100, LimitSend: 1 << 20, LimitReceive: 1 << 20, LimitQuota: 1 << 20}
	if got := own.Within(host); got != want {
		t.Errorf("within those of the host they are %v, want %v", got, want)
	}
	want = Limits{LimitConnections: 10, LimitStreams: 1000, LimitSend: 1 << 20, LimitReceive: Unlimited, LimitQuota: 1 << 20}
	if got := own.Over(host); got != want {
		t.Errorf("over those of the host they are %v, want %v", got, want)
	}
	if got := own.Beside(own); got != (Limits{}) {
		t.Errorf("those that do not differ are %v", got)
	}
}

func TestValuesOfLimitsAreChecked(t *testing.T) {
	t.Parallel()
	for _, l := range AllLimits() {
		if named, ok := LimitNamed(l.String()); !ok || named != l {
			t.Errorf("%s is read as %s", l, named)
		}
		for _, n := range []int64{-1, -1 << 62} {
			if v, err := l.Value(n); err == nil {
				t.Errorf("%s can be %d, which is read as %d", l, n, v)
			}
		}
		_, err := l.Value(0)
		if free := l == LimitSend || l == LimitReceive || l == LimitQuota; free != (err == nil) {
			t.Errorf("%s: 0 is %v", l, err)
		}
	}
	if _, ok := LimitNamed("kernel_flows"); ok {
		t.Error("a box can have kernel_flows of its own")
	}
}
