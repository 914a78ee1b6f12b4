package command

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"boxgate/boundary/mcp"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
)

// newMCPCommand is `gateway mcp`. It runs in a box, as an agent's own process: it reads no configuration and no key.
func newMCPCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "In a box: serve an agent the network policy, the denials and requests for access as tools (MCP)",
		Long: `In a box: serve an agent the network policy, the denials and requests for access as tools of the Model Context Protocol, on
standard input and output.

The command uses http://policy.boxgate.internal, the endpoint of the gateway for boxes, and reads no configuration and no key. The
endpoint must be turned on for the box ("gateway approvals enable").`,
		Example: `  {"mcpServers": {"network": {"command": "gateway", "args": ["mcp"]}}}`,
		Args:    cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := mcp.Server{Version: buildinfo.Get().Version}
			return s.Serve(cmd.Context(), closedBy(cmd), cmd.OutOrStdout())
		},
	}
}

// closedBy returns the standard input of a command, which ends when the command is interrupted.
func closedBy(cmd *cobra.Command) io.Reader {
	in := cmd.InOrStdin()
	f, ok := in.(*os.File)
	if !ok {
		return in
	}
	go func() {
		<-cmd.Context().Done()
		_ = f.Close()
	}()
	return f
}
