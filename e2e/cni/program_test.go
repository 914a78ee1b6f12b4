package cni

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// This test binary is also the only program in the image of the tests' containers: its first argument is then a role.
const (
	rolePause = "pause" // waits for SIGTERM
	roleServe = "serve" // the same, and answers on port 8080 of loopback
	roleFetch = "fetch" // requests a URL
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if err, ok := play(os.Args[1:]); ok {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	harness.Main(m)
}

// play plays a role in a container, if args begin with one.
func play(args []string) (err error, ok bool) {
	switch args[0] {
	case roleServe:
		go func() {
			_ = http.ListenAndServe("127.0.0.1:8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the other container") }))
		}()
		fallthrough
	case rolePause:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		<-ctx.Done()
		return nil, true
	case roleFetch:
		return fetch(args[1]), true
	}
	return nil, false
}

// fetch prints the answer at a URL.
func fetch(url string) error {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the test internet's CA is not in the image
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Print(resp.Status, " ")
	_, err = io.Copy(os.Stdout, io.LimitReader(resp.Body, 1<<10))
	return err
}
