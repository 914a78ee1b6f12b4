// Package enter starts commands in running boxes without the OCI runtime, whose exec costs a start of the runtime in
// several processes. It does the same for one command: it enters the box's control groups and namespaces, and
// gives the command its user, capabilities, limits, terminal and system call filter. It is code of its own, since no library
// does this without cgo and without the runtime's process.
//
// A process must have a single thread to enter a user namespace, so no Go program can. The entering process therefore runs
// a program of some forty instructions ([machine]) that makes the system calls of a list ([plan]) in order and stops at the first
// that fails. It consists of an outer process, which enters control groups, sets limits and enters the namespaces, and its
// child, which becomes the command. The child is a child of this process (CLONE_PARENT), so it is waited for like
// commands that the runtime has started.
//
// # Attacks on the entering process
//
// The outer process is in no PID namespace of the box: the box can neither see nor signal it. The child is visible in
// the box. Until it executes the command:
//
//   - It cannot be traced, and its memory, descriptors and links in /proc cannot be opened (CVE-2016-9962): it is not
//     dumpable, and its memory belongs to the host's user namespace, in which the box has no capability. It also has at
//     least the capabilities of the box's root. Between a change of its user and the next call it is as dumpable as
//     fs.suid_dumpable sets: boxes are not entered on hosts where that is 1.
//   - It has no descriptor of the host except its standard streams and the socket on which it reports errors, which closes
//     when the command is executed: all others are closed before it enters (CVE-2024-21626). Its working directory and root
//     are the box's, so no path leads out.
//   - Its program is not a file of the host: /proc/self/exe is an anonymous file that is sealed against writes and holds
//     only the instructions (CVE-2019-5736). A box that makes a command execute /proc/self/exe executes these under its own
//     confinement, without a list.
//   - It has no memory of this process, so no secrets of other boxes, only its own command with its environment.
//   - It gives up capabilities that a command does not get before it looks at the first path of the box.
//   - It is subject to the box's control groups before it exists: a box at its limit of processes gets no command.
//   - The box's root can kill it or stop it, like the command that it becomes. The caller bounds the wait.
//   - If the outer process is killed before it has reported the child, for lack of memory or with its control group, the caller
//     kills and reaps the control group, and the command is not started again.
//
// The terminal is opened in the box, whose root can replace /dev/ptmx; the other side is taken from the opened file and not
// by a path, and the caller must check the file that it receives.
//
// # Programs of the host
//
// The process of [Command.Executable] works on the files of the box with the rights of one of its users. Its file is the gateway's own, of
// which the box learns nothing: in no PID namespace of the box, the process has no entry in the box's procfs, and its descriptors are its
// streams. In the box's other namespaces it is confined like every command. A dynamic program would run the box's loader; it is refused.
//
// LSM labels, the scheduling class, the I/O priority, the personality and the umask are inherited, as they are through the
// runtimes, since the configuration of boxes does not set them. Signals that the gateway ignores are not.
package enter
