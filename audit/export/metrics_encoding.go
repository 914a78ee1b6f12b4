package export

import (
	"iter"
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resources "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// maxPoints is the maximum number of data points of a request, which bounds its size.
const maxPoints = 5000

// encoding encodes metrics of Prometheus for OTLP, as OpenTelemetry's "Prometheus and OpenMetrics Compatibility" has it. Names stay as
// they are, with their suffixes.
type encoding struct {
	from         Origin
	started, now time.Time
}

// requests returns the bodies of requests for families of metrics: an ExportMetricsServiceRequest is encoded as MetricsData is.
func (e encoding) requests(families []*dto.MetricFamily) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var list []*metrics.Metric
		points := 0
		send := func() bool {
			body, err := proto.Marshal(e.data(list))
			list, points = nil, 0
			return err != nil || yield(body) // texts are valid: the registry checks labels, and attributeOf the rest
		}
		for _, family := range families {
			all := family.GetMetric()
			for len(all) > 0 {
				part := all[:min(len(all), maxPoints-points)]
				all = all[len(part):]
				list = append(list, e.metric(family, part))
				if points += len(part); points == maxPoints && !send() {
					return
				}
			}
		}
		if points > 0 {
			send()
		}
	}
}

func (e encoding) data(list []*metrics.Metric) *metrics.MetricsData {
	var of []*common.KeyValue
	for _, a := range [][2]string{
		{"service.name", "boxgate"}, {"service.version", e.from.Version}, {"service.instance.id", e.from.Host}, {"host.name", e.from.Name}, {"boxgate.run", e.from.Run},
	} {
		if a[1] != "" {
			of = append(of, attributeOf(a[0], a[1]))
		}
	}
	return &metrics.MetricsData{ResourceMetrics: []*metrics.ResourceMetrics{{
		Resource: &resources.Resource{Attributes: of}, SchemaUrl: schema,
		ScopeMetrics: []*metrics.ScopeMetrics{{Scope: &common.InstrumentationScope{Name: "boxgate", Version: e.from.Version}, Metrics: list}},
	}}}
}

func attributeOf(key, value string) *common.KeyValue {
	value = strings.ToValidUTF8(value, "\ufffd") // the name of a host may be any bytes
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

// metric encodes some metrics of a family.
func (e encoding) metric(family *dto.MetricFamily, part []*dto.Metric) *metrics.Metric {
	m := &metrics.Metric{Name: family.GetName(), Description: family.GetHelp()}
	const cumulative = metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch family.GetType() {
	case dto.MetricType_COUNTER:
		sum := &metrics.Sum{AggregationTemporality: cumulative, IsMonotonic: true}
		for _, p := range part {
			sum.DataPoints = append(sum.DataPoints, e.number(p, p.GetCounter().GetValue(), true))
		}
		m.Data = &metrics.Metric_Sum{Sum: sum}
	case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM:
		histogram := &metrics.Histogram{AggregationTemporality: cumulative}
		for _, p := range part {
			histogram.DataPoints = append(histogram.DataPoints, e.histogram(p))
		}
		m.Data = &metrics.Metric_Histogram{Histogram: histogram}
	case dto.MetricType_SUMMARY:
		summary := &metrics.Summary{}
		for _, p := range part {
			summary.DataPoints = append(summary.DataPoints, e.summary(p))
		}
		m.Data = &metrics.Metric_Summary{Summary: summary}
	default:
		gauge := &metrics.Gauge{}
		for _, p := range part {
			gauge.DataPoints = append(gauge.DataPoints, e.number(p, p.GetGauge().GetValue()+p.GetUntyped().GetValue(), false))
		}
		m.Data = &metrics.Metric_Gauge{Gauge: gauge}
	}
	return m
}

func (e encoding) number(p *dto.Metric, value float64, counts bool) *metrics.NumberDataPoint {
	point := &metrics.NumberDataPoint{Attributes: attributesOf(p), TimeUnixNano: unixNano(e.now), Value: &metrics.NumberDataPoint_AsDouble{AsDouble: value}}
	if counts {
		point.StartTimeUnixNano = unixNano(e.started)
	}
	return point
}

// histogram encodes a histogram: in OTLP each bucket has its own count, and the last one is that of all larger values.
func (e encoding) histogram(p *dto.Metric) *metrics.HistogramDataPoint {
	h := p.GetHistogram()
	sum := h.GetSampleSum()
	point := &metrics.HistogramDataPoint{
		Attributes: attributesOf(p), StartTimeUnixNano: unixNano(e.started), TimeUnixNano: unixNano(e.now), Count: h.GetSampleCount(), Sum: &sum,
	}
	below := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			break
		}
		point.ExplicitBounds = append(point.ExplicitBounds, b.GetUpperBound())
		point.BucketCounts = append(point.BucketCounts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	point.BucketCounts = append(point.BucketCounts, h.GetSampleCount()-below)
	return point
}

func (e encoding) summary(p *dto.Metric) *metrics.SummaryDataPoint {
	s := p.GetSummary()
	point := &metrics.SummaryDataPoint{
		Attributes: attributesOf(p), StartTimeUnixNano: unixNano(e.started), TimeUnixNano: unixNano(e.now), Count: s.GetSampleCount(), Sum: s.GetSampleSum(),
	}
	for _, q := range s.GetQuantile() {
		point.QuantileValues = append(point.QuantileValues, &metrics.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
	}
	return point
}

func attributesOf(p *dto.Metric) []*common.KeyValue {
	labels := p.GetLabel()
	of := make([]*common.KeyValue, 0, len(labels))
	for _, l := range labels {
		of = append(of, attributeOf(l.GetName(), l.GetValue()))
	}
	return of
}

func unixNano(t time.Time) uint64 { return uint64(t.UnixNano()) }
