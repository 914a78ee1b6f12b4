package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
)

// tryLine is refused until the policy allows it. The server's certificate is from the demo's internet, hence -k.
const tryLine = "gateway box exec demo -- curl -k -sS https://www.example.com/echo"

// keepOpen shows commands to try in the lab. It returns when a line or the end of in is read, or ctx ends.
func (d *tour) keepOpen(ctx context.Context, in io.Reader) {
	fmt.Fprintf(d.out, "\n\033[1mThe lab stays open\033[0m\n")
	d.narrate("In another terminal, as root:")
	fmt.Fprintf(d.out, "\n     export BOXGATE_CONFIG=%s PATH=$PATH:%s\n", d.lab.Config, filepath.Dir(d.lab.Self))
	for _, line := range []string{
		"gateway status",
		"gateway box shell demo",
		tryLine,
		"gateway log --denied",
		"gateway policy allow demo www.example.com:443",
		tryLine,
		"gateway policy get demo",
		"gateway headers list --box demo",
		"gateway box selftest demo",
	} {
		fmt.Fprintf(d.out, "     %s\n", line)
	}
	fmt.Fprintln(d.out)
	d.narrate("Press Enter here, or Ctrl-C, to remove everything.")
	d.out.mute()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = bufio.NewReader(in).ReadString('\n')
	}()
	select {
	case <-ctx.Done():
	case <-read:
	}
	d.out.unmute()
}
