package host

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// conntrackLook is how often the kernel's connection table is checked.
const conntrackLook = time.Second

// followConntrack logs when the kernel's connection table is nearly full, and when it has room again: a full one silently
// drops new connections of all boxes and of the host. It returns when ctx ends.
func followConntrack(ctx context.Context, log *zap.Logger) error {
	tick := time.NewTicker(conntrackLook)
	defer tick.Stop()
	full := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		count, limit, err := ConntrackFill()
		if err != nil || limit == 0 { // no limit, or a kernel that does not say
			continue
		}
		now := full && count > limit/10*8 || count > limit/10*9
		if now != full {
			logConntrack(log, now, count, limit)
		}
		full = now
	}
}

func logConntrack(log *zap.Logger, full bool, count, limit int) {
	fields := []zap.Field{zap.Int("entries", count), zap.Int("nf_conntrack_max", limit)}
	if full {
		log.Error("the kernel's connection table is nearly full: a full one drops new connections; raise net.netfilter.nf_conntrack_max, "+
			"or lower limits.kernel_flows", fields...)
		return
	}
	log.Info("the kernel's connection table has room again", fields...)
}

// ConntrackFill returns the number of entries of this network namespace and their limit.
func ConntrackFill() (count, limit int, err error) {
	for name, value := range map[string]*int{"nf_conntrack_count": &count, "nf_conntrack_max": &limit} {
		text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		if err != nil {
			return 0, 0, err
		}
		if *value, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	return count, limit, nil
}
