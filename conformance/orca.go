package conformance

import (
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc/orca"
)

// loadReports is the service that the case orca_oob subscribes to. grpc-go's service sends at most one report every 30
// seconds; the interop server overrides that with an internal API.
type loadReports struct {
	orcaservice.UnimplementedOpenRcaServiceServer
	metrics orca.ServerMetricsRecorder
}

// StreamCoreMetrics sends a report immediately and then at the requested interval.
func (l *loadReports) StreamCoreMetrics(req *orcaservice.OrcaLoadReportRequest, stream orcaservice.OpenRcaService_StreamCoreMetricsServer) error {
	tick := time.NewTicker(max(req.GetReportInterval().AsDuration(), 10*time.Millisecond))
	defer tick.Stop()
	for {
		m := l.metrics.(orca.ServerMetricsProvider).ServerMetrics()
		err := stream.Send(&orcapb.OrcaLoadReport{
			CpuUtilization: max(m.CPUUtilization, 0), MemUtilization: max(m.MemUtilization, 0), Utilization: m.Utilization,
		})
		if err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
