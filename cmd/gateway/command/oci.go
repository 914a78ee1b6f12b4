package command

import (
	"errors"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/oci"
	"boxgate/preflight"
)

const ociHelp = `An OCI runtime whose containers are behind the gateway: Docker, Podman and containerd call it instead of RUNTIME (runc, crun, runsc),
which it calls with the same arguments.

"create" attaches the container's network namespace before its first process exists, mounts a resolv.conf and installs the CA of the
box. "delete" detaches it. Without the gateway's consent no container is created. The annotations boxgate.dev/policy, headers, name,
labels and stack choose among the values of attach.oci in the configuration.

A link named gateway-oci-RUNTIME to this program is the same command, for engines that take a path without arguments.`

const ociExample = `  ln -s "$(command -v gateway)" /usr/local/bin/gateway-oci-runc
  podman --runtime /usr/local/bin/gateway-oci-runc run --annotation boxgate.dev/policy=named:web alpine
  ctr run --runc-binary /usr/local/bin/gateway-oci-runc docker.io/library/alpine:3 agent`

// newOCICommand is `gateway oci`.
func newOCICommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   oci.Command + " [--policy P] [--headers H] RUNTIME [FLAGS] COMMAND [ARG...]",
		Short: "Run containers of Docker, Podman and containerd behind the gateway, as their OCI runtime",
		Long:  ociHelp, Example: ociExample, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			line, err := oci.ParseLine(args, []string{"--policy", "--headers", "--config", "--admin"})
			if err != nil {
				return cli.UsageError(err)
			}
			o.ConfigFile, o.Admin = orElse(line.Own["--config"], o.ConfigFile), orElse(line.Own["--admin"], o.Admin)
			status, err := oci.Run(cmd.Context(), line, func() (oci.Gateway, error) { return ociGateway(o, line) })
			if err == nil && status != 0 {
				err = cli.CommandExit{Status: status}
			}
			return err
		},
	}
}

// ociGateway returns the running gateway for containers of `gateway oci`.
func ociGateway(o *cli.Options, line oci.Line) (oci.Gateway, error) {
	if err := preflight.NeedRoot(); err != nil {
		return oci.Gateway{}, errors.New("gateway oci runs containers of root only, not those of a rootless engine")
	}
	cfg, err := o.Load()
	if err != nil {
		return oci.Gateway{}, err
	}
	g, err := dockerGateway(o)
	if err != nil {
		return oci.Gateway{}, err
	}
	return oci.Gateway{
		Client: g.Client, Resolver: g.Resolver, Roots: g.Roots, Sockets: g.Sockets, Rules: cfg.Attach.OCI, Policy: line.Own["--policy"], Headers: line.Own["--headers"],
	}, nil
}

// newOCIWaitCommand is the process that holds the network namespace of a new container.
func newOCIWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use: oci.WaitCommand, Short: "Wait in the network namespace of a new container (started by `gateway oci`)",
		Args: cli.ExactArgs(0), Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return oci.Wait(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}
