package files

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestBuildersTakeTurns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		unlock, err := Lock(t.Context(), path, func() { close(waiting) })
		if err == nil {
			unlock()
		}
		second <- err
	}()
	<-waiting
	select {
	case <-second:
		t.Fatal("two processes had the lock")
	default:
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting was not given up: %v", err)
	}
	unlock()
	if err := <-second; err != nil {
		t.Error(err)
	}
}
