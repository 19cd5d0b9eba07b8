// Package privatepg runs a PostgreSQL server that belongs to this process
// alone: for `leasehold dev`, for tests, and for tests of faults.
//
// It uses the PostgreSQL binaries that are installed (version 14 or newer, see
// [Find]) and never any server that is already there: the server of this
// package has its own data directory, its own port on 127.0.0.1 and its own
// unix socket in a folder that only its account can enter. Both ways in ask for
// a random password, which is part of [Server.URL].
//
// # Folders
//
// A kept server lives in Config.DataDir:
//
//	pgdata/       PostgreSQL's data directory
//	password      the superuser's password, 0600
//	lock          held by flock while a process of ours uses the folder
//	postgres.log  what the server says
//
// An ephemeral one has the same files in its runtime folder, a short path under
// the temporary directory. Every server has a runtime folder, because the path
// of a unix socket may not be longer than about 100 bytes. A runtime folder
// whose owner was killed is removed by the next Start.
//
// # Root
//
// PostgreSQL refuses to run as root. A process of root runs it as the owner of
// an existing data directory, else as the user postgres, else as nobody. Only
// folders that this package makes change their owner.
//
// # Whoever dies first
//
// On Linux the kernel sends the server SIGQUIT when the process that started it
// ends in any way, kill -9 included; a frozen server is woken by that too. The
// data of a kept server then goes through crash recovery at the next Start.
// Elsewhere a server outlives a killed parent, and the next Start on its folder
// names it in an [InUseError].
package privatepg
