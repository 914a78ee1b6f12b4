package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// boxAttach holds the flags of `gateway box attach`.
type boxAttach struct {
	netns, container, name, policy, headers, stack string
	pid                                            int
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
			return o.Call(cmd, "POST", "/v2/box/attach", body, newBoxAnswer(cmd))
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.netns, "netns", "", "path of its network namespace, such as /run/netns/NAME")
	f.IntVar(&a.pid, "pid", 0, "a process in its network namespace")
	f.StringVar(&a.container, "container", "", "ID or name of a Docker container, started with --network none")
	f.StringVar(&a.stack, "stack", "", "whose network stack uses the interface: host (default), or guest for gVisor and virtual machines")
	f.StringVar(&a.name, "name", "", "a name of your choice")
	f.StringVar(&a.policy, "policy", "", "network policy: JSON, @FILE, -, allow-all or deny-all (default: allow-all)")
	f.StringVar(&a.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	return cmd
}

func (a *boxAttach) body(stdin io.Reader) (boxBody, error) {
	if a.netns == "" && a.container == "" && a.pid == 0 {
		return nil, cli.Usagef("say what to attach: --netns, --pid or --container")
	}
	body := boxBody{}
	body.setText(map[string]string{"netns": a.netns, "container": a.container, "name": a.name, "stack": a.stack})
	if a.pid != 0 {
		body["pid"] = a.pid
	}
	return body, body.setNetwork(a.policy, a.headers, stdin)
}

func newBoxDetach(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "detach BOX...", Short: "Take attached boxes off the network and forget them", Args: cli.MinArgs(1),
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
