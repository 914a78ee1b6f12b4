package files

import (
	"context"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// removeInChild is an environment variable with a tree: a test process that finds it removes that tree with few descriptors
// and ends.
const removeInChild = "LAUNCHER_TEST_REMOVE"

func TestMain(m *testing.M) {
	tree := os.Getenv(removeInChild)
	if tree == "" {
		os.Exit(m.Run())
	}
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64})
	if err == nil {
		err = RemoveTree(context.Background(), tree)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
