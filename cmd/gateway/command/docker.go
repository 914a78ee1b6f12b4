package command

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/docker"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/config"
	"boxgate/host"
	"boxgate/preflight"
)

const dockerRunHelp = `Run a container behind the gateway: docker run with the gateway as the only network.

The container is attached before its command runs, with the CA of its box in its certificate stores and variables. Flags of
docker run are passed on unless they would let the container leave the gateway. Flags of the gateway may be mixed in.`

const dockerRunExample = `  sudo gateway docker run --policy preset:github,pypi -it --rm python:3.13 bash
  sudo gateway docker run --policy @policy.json --headers @headers.json -d --name agent node:22 node agent.js`

// newDockerCommand is `gateway docker`.
func newDockerCommand(o *cli.Options) *cobra.Command {
	cmd := cli.Group("docker", "Run Docker containers behind the gateway")
	cmd.AddCommand(&cobra.Command{
		Use: "run [--policy P] [--headers H] [FLAGS of docker run] IMAGE [COMMAND...]", Short: "Run a container whose only network is the gateway",
		Long: dockerRunHelp, Example: dockerRunExample, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error { return dockerRun(cmd, o, args) },
	})
	return cmd
}

func dockerRun(cmd *cobra.Command, o *cli.Options, args []string) error {
	if len(args) == 0 {
		return cli.Usagef("IMAGE is missing: `gateway docker run IMAGE [COMMAND...]`")
	}
	if args[0] == "--help" || len(args) == 1 && args[0] == "-h" { // -h with arguments is Docker's --hostname
		return cmd.Help()
	}
	o.JSON = o.JSON || wantsJSON(args)
	line, err := docker.Parse(args, []string{"--policy", "--headers", "--config", "--admin"}, []string{"--json"})
	if err != nil {
		return cli.UsageError(err)
	}
	ours := line.Gateway
	o.ConfigFile, o.Admin = orElse(ours["--config"], o.ConfigFile), orElse(ours["--admin"], o.Admin)
	g, err := dockerGateway(o)
	if err != nil {
		return err
	}
	body := boxBody{}
	if err := body.setNetwork(ours["--policy"], ours["--headers"], cmd.InOrStdin()); err != nil {
		return err
	}
	g.Body = body
	status, id, err := g.Run(cmd.Context(), line)
	switch {
	case err != nil:
		return err
	case id != "":
		fmt.Fprintln(cmd.OutOrStdout(), id)
	case status != 0:
		return cli.CommandExit{Status: status}
	}
	return nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// dockerGateway returns the running gateway for the container commands.
func dockerGateway(o *cli.Options) (docker.Gateway, error) {
	if err := preflight.NeedRoot(); err != nil {
		return docker.Gateway{}, errors.New("the files and namespaces of containers are root's: run this with sudo")
	}
	cfg, err := o.Load()
	if err != nil {
		return docker.Gateway{}, err
	}
	client, err := o.Client()
	if err != nil {
		return docker.Gateway{}, err
	}
	addrs, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return docker.Gateway{}, err
	}
	roots, err := host.AddedRoots(cfg.Proxy.UpstreamCAFiles)
	return docker.Gateway{Client: client, Resolver: addrs.GatewayV4, Roots: roots, Sockets: []string{cfg.Admin.Socket, cfg.StateDir}}, err
}

// newHoldCommand is the first process of a container started by `gateway docker run`.
func newHoldCommand() *cobra.Command {
	return &cobra.Command{
		Use: docker.HoldCommand + " -- TOKEN COMMAND [ARG...]", Short: "Wait for the network of a container (started by `gateway docker run`)",
		Args: cli.MinArgs(2), Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return cli.StatusError{Status: 127, Err: docker.Hold(args)}
		},
	}
}

// prepareContainer disconnects a container from its networks before it is attached.
func (a *boxAttach) prepareContainer(cmd *cobra.Command, o *cli.Options) error {
	if a.container == "" {
		if a.installCA || a.disconnect {
			return cli.Usagef("--install-ca and --disconnect are for a --container")
		}
		return nil
	}
	if !a.installCA && !a.disconnect {
		return nil
	}
	g, err := dockerGateway(o)
	if err != nil {
		return err
	}
	in := cmd.InOrStdin()
	if terminal.Of(in) == nil {
		in = nil
	}
	return g.Disconnect(cmd.Context(), a.container, a.disconnect, in, cmd.ErrOrStderr())
}

// installInContainer installs the CA of the box in its container.
func (a *boxAttach) installInContainer(cmd *cobra.Command, o *cli.Options, answer json.RawMessage) error {
	if !a.installCA {
		return nil
	}
	var box struct {
		ID       string
		Attached api.Attached
	}
	if err := json.Unmarshal(answer, &box); err != nil {
		return err
	}
	g, err := dockerGateway(o)
	if err != nil {
		return err
	}
	if err := g.InstallCA(cmd.Context(), box.ID, box.Attached.Container); err != nil {
		return fmt.Errorf("the box %s is attached, but its CA is not installed: %w", box.ID, err)
	}
	return nil
}
