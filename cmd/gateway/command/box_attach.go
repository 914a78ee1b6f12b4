package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// sandbox holds the flags that select the sandbox to attach.
type sandbox struct {
	netns, container string
	pid              int
}

// add defines the flags.
func (s *sandbox) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.netns, "netns", "", "path of its network namespace, such as /run/netns/NAME")
	f.IntVar(&s.pid, "pid", 0, "ID of a process in its network namespace")
	f.StringVar(&s.container, "container", "", "ID or name of a Docker container, started with --network none")
}

// body returns the flags as fields of the API.
func (s *sandbox) body() boxBody {
	body := boxBody{}
	body.setText(map[string]string{"netns": s.netns, "container": s.container})
	if s.pid != 0 {
		body["pid"] = s.pid
	}
	return body
}

// boxAttach holds the flags of `gateway box attach`.
type boxAttach struct {
	sandbox
	name, policy, headers, stack string
	sources, limits, labels      []string
	installCA, disconnect        bool
}

func newBoxAttach(o *cli.Options) *cobra.Command {
	var a boxAttach
	cmd := &cobra.Command{
		Use:   "attach (--netns PATH | --pid PID | --container ID)",
		Short: "Attach an existing sandbox to the gateway and print it",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := a.body(cmd.InOrStdin())
			if err != nil {
				return err
			}
			if err := a.prepareContainer(cmd, o); err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", "/v2/box/attach", body, &answer); err != nil {
				return cli.NameTaken(cmd.Context(), client, a.name, err)
			}
			return errors.Join(o.Show(cmd, answer, newBoxAnswer(cmd)), a.installInContainer(cmd, o, answer))
		},
	}
	a.add(cmd)
	cli.MapFields(cmd, sentByBox)
	f := cmd.Flags()
	f.StringVar(&a.stack, "stack", "", "which network stack uses the interface: host (default), or guest for gVisor and virtual machines")
	f.StringVar(&a.name, "name", "", "a name of your choice")
	f.StringVar(&a.policy, "policy", "", "network policy: "+cli.BoxPolicyHelp+" (default: the gateway's policy.default)")
	f.StringArrayVar(&a.labels, "label", nil, labelHelp)
	f.StringArrayVar(&a.sources, "source", nil, sourceHelp)
	f.StringArrayVar(&a.limits, "limit", nil, limitHelp)
	f.BoolVar(&a.installCA, "install-ca", false, "with --container: make the container trust the CA of its box")
	f.BoolVar(&a.disconnect, "disconnect", false, "with --container: disconnect it from Docker's networks without asking")
	f.StringVar(&a.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	return cmd
}

func (a *boxAttach) body(stdin io.Reader) (boxBody, error) {
	if a.netns == "" && a.container == "" && a.pid == 0 {
		return nil, cli.Usagef("give the sandbox to attach: --netns, --pid or --container")
	}
	if len(a.sandbox.body()) > 1 {
		return nil, cli.Usagef("give one of --netns, --pid and --container")
	}
	body := a.sandbox.body()
	body.setText(map[string]string{"name": a.name, "stack": a.stack})
	body.setLabels(a.labels)
	body.setSources(a.sources)
	if err := body.setLimits(a.limits); err != nil {
		return nil, err
	}
	return body, body.setNetwork(a.policy, a.headers, stdin)
}

func newBoxReattach(o *cli.Options) *cobra.Command {
	var s sandbox
	cmd := &cobra.Command{
		Use:   "reattach BOX [--netns PATH | --pid PID | --container ID]",
		Short: "Attach a box to its sandbox again, or to another one; its policy, rules, URLs and CA stay",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "POST", api.BoxPath(args[0], "reattach"), s.body(), newBoxAnswer(cmd))
		},
	}
	s.add(cmd)
	return cmd
}

func newBoxDetach(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "detach BOX...", Short: "Disconnect attached boxes and delete them", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := o.Call(cmd, "POST", api.BoxPath(box, "detach"), nil, cli.Silent); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}
