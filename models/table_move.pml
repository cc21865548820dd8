/* MoveTable between this catalog and a mounted one: two catalogs, no transaction over both, a kill before any step.
 *
 * A table is moved out and moved in by several calls, each of which may be killed, and repeated until one ends. Another
 * client of the mounted catalog takes away the entry, or gives its name to a table of its own. Promised:
 *   - the table is in one of the two catalogs at every moment, or in both for a moment; never in none of them by us;
 *   - whoever reads it below the mount while this catalog has it is refused: one table is not served by two names;
 *   - an entry is removed only right after it was seen to be that of our location: a catalog that removes by name alone
 *     leaves a moment in which another client may have put its own there;
 *   - a call that is repeated ends the move.
 */
#define NOTHING 0
#define OURS 1
#define FOREIGN 2

byte here = OURS;     /* the record of this catalog: ours, or one of the mount's (FOREIGN) */
byte there;           /* what the mounted catalog has under the name: NOTHING, our location (OURS), another (FOREIGN) */
byte ended;

#define may_stop if :: true :: goto stopped fi

/* _find_or_add_entry (catalog/mounts/table_moves.py): put if absent; an entry of our location is that of an earlier call */
inline add_entry() {
    atomic {
        if
        :: there == NOTHING -> there = OURS; is_new = true; goes_on = true
        :: there == OURS -> is_new = false; goes_on = true
        :: there == FOREIGN -> goes_on = false
        fi
    }
}

/* give_to_mount (store/mounts/table_moves.py): in one transaction, only if the record is still this catalog's own */
inline give_record() {
    atomic { if :: here == OURS -> here = FOREIGN; goes_on = true :: else -> goes_on = false fi }
}

/* take_from_mount (store/mounts/table_moves.py): in one transaction, under the new name */
inline take_record() {
    atomic { if :: here == FOREIGN -> here = OURS; goes_on = true :: else -> goes_on = false fi }
}

/* move_table (catalog/mounts/table_moves.py): the entry first, then the record */
proctype MoveOut() {
    bool is_new, goes_on;
    add_entry();
    may_stop;
    if
    :: goes_on ->
#ifdef BROKEN_RECORD_REMOVED_FIRST
        here = NOTHING;
        may_stop;
        here = FOREIGN
#else
        give_record();
        if
        :: !goes_on && is_new && here == OURS -> atomic { if :: there == OURS -> there = NOTHING :: else fi }
        :: else
        fi
#endif
    :: else
    fi;
stopped:
    ended++
}

/* import_table (catalog/mounts/table_moves.py): the record first, then the entry, if it is still that of our location */
proctype MoveIn(bool may_be_killed) {
    bool goes_on;
    byte seen;
    ended == 1;
    if
    :: there == OURS ->
        if
        :: here != OURS -> take_record()
        :: else -> goes_on = true /* _find_at (catalog/mounts/table_moves.py): moved by an earlier call that was killed */
        fi;
        if :: may_be_killed -> may_stop :: else fi;
        if
        :: goes_on ->
            seen = there;
#ifdef BROKEN_ENTRY_REMOVED_UNSEEN
            if :: true -> assert(seen != FOREIGN); there = NOTHING fi
#else
            if :: seen == OURS -> assert(seen != FOREIGN); there = NOTHING :: else fi
#endif
        :: else
        fi
    :: else
    fi;
stopped:
    skip
}

/* No function of ours: a client of the mounted catalog, which drops an entry and creates a table of that name. */
proctype Other() {
    if
    :: atomic { there == OURS -> there = NOTHING }
    :: atomic { there == NOTHING -> there = FOREIGN }
    :: true
    fi;
    if
    :: atomic { there == NOTHING -> there = FOREIGN }
    :: true
    fi
}

/* check_own_location (mounts/registry/mount.py): below the mount an entry is refused whose location this catalog has */
proctype Reader() {
    bool served;
    atomic {
#ifdef BROKEN_SERVED_TWICE
        served = (there == OURS);
#else
        served = (there == OURS && here != OURS);
#endif
        assert(!(served && here == OURS))
    }
}

init { atomic { run MoveOut(); run MoveIn(true); run MoveIn(false); run Other(); run Reader() } }

ltl promised { [] (here != NOTHING) }
