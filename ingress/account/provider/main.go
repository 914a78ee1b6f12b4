// Command provider is an OpenID Connect provider for tests, with the accounts of a file. It is a separate module, so that its
// dependencies are not boxgate's.
//
//	provider USERS CLIENT SECRET REDIRECT
//
// It prints its issuer, and stops when its standard input ends.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: provider USERS CLIENT SECRET REDIRECT")
	}
	users, err := storage.StoreFromFile(args[0])
	if err != nil {
		return err
	}
	storage.RegisterClients(storage.WebClient(args[1], args[2], args[3]))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := fmt.Sprintf("http://localhost:%d/", ln.Addr().(*net.TCPAddr).Port)
	fmt.Println(issuer)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	return http.Serve(ln, exampleop.SetupServer(issuer, storage.NewStorage(users), quiet, false))
}
