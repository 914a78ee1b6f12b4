package cni

import (
	"testing"

	"boxgate/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
