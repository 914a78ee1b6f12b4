package stat

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := Median(test.values); got != test.want {
			t.Errorf("Median(%v) = %v, want %v", test.values, got, test.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestRatiosPairRounds(t *testing.T) {
	ours := map[Round]float64{{0, 1}: 10, {0, 2}: 40, {0, 3}: 30, {0, 4}: 7}
	theirs := map[Round]float64{{0, 1}: 10, {0, 2}: 20, {0, 3}: 20, {0, 5}: 1, {1, 4}: 1}
	got := Ratios(ours, theirs)
	if got.Median != 1.5 || got.Low != 1 || got.High != 2 || got.Rounds != 3 || got.Starts != 1 || !math.IsNaN(got.Mean) {
		t.Errorf("got %+v", got)
	}
	if got := Ratios(ours, nil); got.Rounds != 0 || !math.IsNaN(got.Median) {
		t.Errorf("a ratio to nothing is %+v", got)
	}
}

// Rounds of one start agree with each other, but the starts differ: only their number narrows the interval.
func TestIntervalIsOfStarts(t *testing.T) {
	ours, theirs := map[Round]float64{}, map[Round]float64{}
	for start, ratio := range []float64{0.9, 1.1, 0.95, 1.05, 1} {
		for number := range 20 {
			ours[Round{start, number}], theirs[Round{start, number}] = 10*ratio, 10
		}
	}
	got := Ratios(ours, theirs)
	if got.Starts != 5 || math.Abs(got.Mean-1) > 0.01 || got.From > 0.97 || got.To < 1.03 || got.From < 0.9 || got.To > 1.1 {
		t.Errorf("got %+v", got)
	}
	if again := Ratios(ours, theirs); again != got {
		t.Errorf("the same figures give %+v, then %+v", got, again)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var a, b Histogram
	for i := 1; i <= 1000; i++ {
		h := &a
		if i%2 == 0 {
			h = &b
		}
		h.Add(time.Duration(i) * time.Microsecond)
	}
	a.Merge(&b)
	if a.Count() != 1000 {
		t.Fatalf("counted %d", a.Count())
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if got := a.Quantile(q); math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestBucketsAreOrdered(t *testing.T) {
	last := -1
	for v := uint64(0); v < 1<<40; v += 1 + v/97 {
		i := bucket(v)
		if i < last || floor(i) > time.Duration(v) {
			t.Fatalf("bucket(%d) = %d after %d, which begins at %d", v, i, last, floor(i))
		}
		last = i
	}
}
