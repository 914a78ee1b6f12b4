package rootfs

import (
	"fmt"
	"strings"
)

// sudoersPath is read by sudo if /etc/sudoers includes its directory, as in all distributions. sudo may be installed later.
const sudoersPath = "/etc/sudoers.d/boxgate"

// sudoers lets the box's user become any user without a password: the box's root is no boundary to it, and it has no password to
// ask for. The environment is reset except for the variables with which programs find the certificates that the box trusts.
func sudoers(user string) string {
	return fmt.Sprintf("# Written by the gateway, since launcher.root is set.\n"+
		"Defaults:%s env_keep += \"%s\"\n"+
		"%s ALL=(ALL:ALL) NOPASSWD: ALL\n", user, strings.Join(TrustVariables, " "), user)
}

// LetSudo lets the user of the box use sudo without a password. In a root that was mounted without set-user-ID programs, or for a
// command with no_new_privs, it has no effect. An existing file or link of that name is replaced.
//
// Parents of the file that are missing are made as sudo's package would: the directory is only for root, but sudo accepts any
// mode in which others cannot write.
func (b *Root) LetSudo(account Account) error {
	return b.replace(sudoersPath, []byte(sudoers(account.UserName())), 0o440)
}
