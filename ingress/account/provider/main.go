// Command provider is an OpenID Connect provider for tests, with the accounts of a file and their groups. It is a separate module,
// so that its dependencies are not boxgate's.
//
//	provider USERS CLIENT SECRET REDIRECT
//
// It prints its issuer, and stops when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
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
	groups, err := groupsOf(args[0])
	if err != nil {
		return err
	}
	return http.Serve(ln, exampleop.SetupServer(issuer, &grouped{storage.NewStorage(users), groups}, quiet, false))
}

// grouped puts the groups of an account into its ID token, as the claim "groups".
type grouped struct {
	*storage.Storage
	groups map[string][]string // by ID of the account
}

// SetUserinfoFromRequest implements op.CanSetUserinfoFromRequest, for ID tokens.
func (g *grouped) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, request op.IDTokenRequest, scopes []string) error {
	if list := g.groups[request.GetSubject()]; list != nil {
		info.AppendClaims("groups", list)
	}
	return g.Storage.SetUserinfoFromRequest(ctx, info, request, scopes)
}

// groupsOf reads the field Groups of each account of a file, by the account's ID.
func groupsOf(path string) (map[string][]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var accounts map[string]struct {
		ID     string
		Groups []string
	}
	err = json.Unmarshal(data, &accounts)
	groups := map[string][]string{}
	for _, a := range accounts {
		groups[a.ID] = a.Groups
	}
	return groups, err
}
