// Package stat has the statistics of the benchmarks: medians, per-round ratios, and a histogram of latencies.
package stat

import (
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

// Median returns the median of the values, or NaN if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Round is one round of measurements after a start of the programs.
type Round struct{ Start, Number int }

// Ratio compares two programs over the rounds in which both were measured.
type Ratio struct {
	Median, Low, High float64
	Rounds            int

	// Mean is the geometric mean of the medians of each start, and From to To its 90 % confidence interval, by a bootstrap
	// over the starts. Two processes of one program can differ by several percent for as long as they run, which the
	// spread of the rounds does not show. NaN unless there are several starts.
	Mean, From, To float64
	Starts         int
}

// Ratios divides a by b round by round. If the machine is slower in one round, both programs are, which a ratio of two
// medians would not show.
func Ratios(a, b map[Round]float64) Ratio {
	var all []float64
	starts := map[int][]float64{}
	for round, over := range a {
		if under, ok := b[round]; ok && under > 0 {
			all = append(all, over/under)
			starts[round.Start] = append(starts[round.Start], over/under)
		}
	}
	nan := math.NaN()
	if len(all) == 0 {
		return Ratio{Median: nan, Low: nan, High: nan, Mean: nan, From: nan, To: nan}
	}
	r := Ratio{Median: Median(all), Low: slices.Min(all), High: slices.Max(all), Rounds: len(all), Mean: nan, From: nan, To: nan, Starts: len(starts)}
	if len(starts) > 1 {
		var logs []float64
		for _, start := range slices.Sorted(maps.Keys(starts)) {
			logs = append(logs, math.Log(Median(starts[start])))
		}
		r.Mean, r.From, r.To = bootstrap(logs)
	}
	return r
}

// bootstrap returns the mean of the logarithms, and its 90 % confidence interval, as powers of e.
func bootstrap(logs []float64) (at, from, to float64) {
	const samples = 4000
	mean := func(pick func(int) float64) float64 {
		sum := 0.0
		for i := range logs {
			sum += pick(i)
		}
		return sum / float64(len(logs))
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same figures give the same interval
	means := make([]float64, samples)
	for i := range means {
		means[i] = mean(func(int) float64 { return logs[random.IntN(len(logs))] })
	}
	slices.Sort(means)
	at = mean(func(i int) float64 { return logs[i] })
	return math.Exp(at), math.Exp(means[samples/20]), math.Exp(means[samples-samples/20])
}

// octave is the base-2 logarithm of the number of buckets per doubling of the latency. Quantiles are at most 1.6 % off.
const octave = 6

// Histogram counts latencies in buckets whose width grows with the value. The zero value is empty.
type Histogram struct {
	buckets [64 << octave]uint64
	count   uint64
}

// Add counts one latency.
func (h *Histogram) Add(d time.Duration) {
	h.buckets[bucket(uint64(max(d, 0)))]++
	h.count++
}

// Merge adds the counts of another histogram.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.count += o.count
}

// Count returns the number of latencies.
func (h *Histogram) Count() uint64 { return h.count }

// Quantile returns the latency not exceeded by the fraction q of all, or 0 for an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.count))
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; seen > rank {
			return floor(i)
		}
	}
	return h.max()
}

func (h *Histogram) max() time.Duration {
	for i := len(h.buckets) - 1; i >= 0; i-- {
		if h.buckets[i] > 0 {
			return floor(i)
		}
	}
	return 0
}

// bucket returns the bucket of a value: exact below 2^octave, then 2^octave buckets for each power of two.
func bucket(v uint64) int {
	if v < 1<<octave {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - octave
	return (shift+1)<<octave + int(v>>shift) - 1<<octave
}

// floor returns the smallest value of a bucket.
func floor(i int) time.Duration {
	if i < 1<<octave {
		return time.Duration(i)
	}
	shift := i>>octave - 1
	return time.Duration(i&(1<<octave-1)+1<<octave) << shift
}
