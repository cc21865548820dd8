/* MoveTable between this catalog and a mounted one: two catalogs, no transaction over both, a kill before any step.
 *
 * A table is moved out and moved in by several calls at once, each of which may be killed or refused. Another client of
 * the mounted catalog takes away the entry, or gives its name to a table of its own. Promised:
 *   - the table is in one of the two catalogs at every moment, or in both for a moment; never in none of them by us;
 *   - whoever reads it below the mount while this catalog has it is refused: one table is not served by two names;
 *   - an entry is removed only right after it was seen to be that of our location: a catalog that removes by name alone
 *     leaves a moment in which another client may have put its own there;
 *   - a call that comes to its end, and was not refused, has moved the table.
 */
#define NOTHING 0
#define OURS 1
#define FOREIGN 2
#define REFUSED 3
#define CALLS 4

byte here = OURS;     /* the record of this catalog: its own (OURS), or the mount's (FOREIGN) */
byte there;           /* what the mounted catalog has under the name: NOTHING, our location (OURS), another (FOREIGN) */
byte turn;            /* the call that has the turn of the table's moves */
bool dropped;         /* another client has dropped our entry: the table may be in no catalog from then on */
bool ended[CALLS + 1];

mtype = { STOP, BEGIN, CLAIM, ADD, READ, GIVE, REFUSE, FIND, TAKE, REMOVE, END_TURN, EXPIRE, DROP, PUT };
#define abstract (here + 3 * (there + 3 * turn))
#include "steps.h"

inline check_kept() { assert(here == OURS || there == OURS || dropped) }

/* hold_turn (tables/turns.py): waits until nobody has it */
inline claim() {
#ifdef BROKEN_NO_TURN
    atomic { turn = _pid; is_here = (here == OURS); step(_pid, CLAIM, 1) }
#else
    atomic { turn == 0 -> turn = _pid; is_here = (here == OURS); step(_pid, CLAIM, 1) }
#endif
}

inline end_turn() { atomic { if :: turn == _pid -> turn = 0 :: else fi; step(_pid, END_TURN, 0) } }

/* read_entry (mounts/registry/mount.py) */
inline read_entry() { atomic { seen = there; step(_pid, READ, seen) } }

/* _find_or_add_entry (catalog/mounts/table_moves.py): put if absent; an entry of our location is that of an earlier call */
inline add_entry() {
    atomic {
        is_new = (there == NOTHING);
        if :: is_new -> there = OURS :: else fi;
        step(_pid, ADD, is_new)
    };
    if
    :: is_new -> seen = OURS
    :: else -> may_stop; read_entry()
    fi
}

/* give_to_mount (store/mounts/table_moves.py): in one transaction, only if the record is still this catalog's own. It is
 * refused, too, where the table is being written, or others would see more. */
inline give_record() {
    if
    :: atomic { is_moved = (here == OURS); if :: is_moved -> here = FOREIGN :: else fi; step(_pid, GIVE, is_moved); check_kept() }
    :: atomic { is_moved = false; step(_pid, REFUSE, 0) }
    fi
}

/* take_from_mount (store/mounts/table_moves.py): in one transaction, under the new name */
inline take_record() {
    atomic { is_moved = (here == FOREIGN); if :: is_moved -> here = OURS :: else fi; step(_pid, TAKE, is_moved) }
}

/* _remove_entry_of (catalog/mounts/table_moves.py): if it is still that of our location */
inline remove_entry() {
#ifdef BROKEN_ENTRY_REMOVED_UNSEEN
    atomic { seen = there; if :: seen != NOTHING -> seen = OURS :: else fi; is_right = (there != FOREIGN); step(_pid, READ, there) };
#else
    read_entry();
    is_right = true;
#endif
    if
    :: seen == OURS ->
        may_stop;
        atomic { seen = there; there = NOTHING; step(_pid, REMOVE, (seen != NOTHING)); check_kept(); assert(is_right) }
    :: else
    fi
}

/* check_own_location (mounts/registry/mount.py): below the mount an entry is refused whose location this catalog has.
 * find_table (mounts/registry/mount.py) says what it is otherwise. */
inline find() {
    atomic {
#ifdef BROKEN_SERVED_TWICE
        seen = there;
#else
        seen = (there == OURS && here == OURS -> REFUSED : there);
#endif
        step(_pid, FIND, seen);
        assert(seen != OURS || here != OURS)
    }
}

/* move_table (catalog/mounts/table_moves.py): the entry first, then the record */
proctype MoveOut() {
    bool is_here, is_new, is_moved, is_right;
    byte seen;
    atomic { is_here = (here == OURS); step(_pid, BEGIN, is_here) };
    if
    :: is_here ->
        claim();
        may_stop;
#ifdef BROKEN_RECORD_GIVEN_FIRST
        seen = OURS; is_new = false;
        give_record();
        may_stop;
        add_entry();
#else
        add_entry();
        if
        :: seen == OURS ->
            may_stop;
            give_record();
            if
            :: is_moved -> assert(here == FOREIGN && (there == OURS || dropped))
            :: !is_moved && is_new -> may_stop; remove_entry()
            :: else
            fi
        :: else
        fi;
#endif
        may_stop;
        end_turn()
    :: else
    fi;
stopped:
    atomic { ended[_pid] = true; is_here = false; is_new = false; is_moved = false; is_right = false; seen = NOTHING }
}

/* import_table (catalog/mounts/table_moves.py): the record first, then the entry, if it is still that of our location */
proctype MoveIn() {
    bool is_here, is_moved = true, is_right;
    byte seen;
    may_stop;
    atomic { is_here = (here == OURS); seen = there; step(_pid, READ, seen) };
    if
    :: seen == FOREIGN || (seen == OURS && !is_here) -> find()
    :: else
    fi;
    if
    :: seen == OURS ->
        claim();
        if
        :: !is_here -> may_stop; take_record()
        :: else /* _find_at (catalog/mounts/table_moves.py): moved by an earlier call, or not moved out yet */
        fi;
        if
        :: is_moved -> may_stop; remove_entry(); assert(here == OURS)
        :: else
        fi;
        may_stop;
        end_turn()
    :: else
    fi;
stopped:
    atomic { ended[_pid] = true; is_here = false; is_moved = false; is_right = false; seen = NOTHING }
}

/* No function of ours: a client of the mounted catalog, which drops an entry and creates a table of that name. */
proctype Other() {
    byte times;
    do
    :: atomic { times < 2 && there == OURS -> there = NOTHING; dropped = true; times++; step(_pid, DROP, 1) }
    :: atomic { times < 2 && there == NOTHING -> there = FOREIGN; times++; step(_pid, PUT, 1) }
    :: break
    od
}

proctype Reader() {
    byte seen;
    find()
}

/* No function of ours: the lease of a turn ends whose call was killed. */
proctype Time() {
end:
    do
    :: atomic { turn != 0 && ended[turn] -> turn = 0; step(_pid, EXPIRE, 1) }
    od
}

init { atomic { run MoveOut(); run MoveOut(); run MoveIn(); run MoveIn(); run Other(); run Reader(); run Time() } }
