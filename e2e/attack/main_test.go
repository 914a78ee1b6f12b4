package attack

import (
	"fmt"
	"os"
	"testing"

	"boxgate/e2e/harness"
)

func TestMain(m *testing.M) {
	if os.Getenv(soakerVariable) != "" {
		if err := runSoaker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	harness.Main(m)
}
