/* Appends of several servers to one table: queued in the catalog, committed together by the server with the turn.
 *
 * Two servers append one row each, and each may commit the other's. A turn is a lease that may end at any moment; a
 * commit may be made although its server gets an error. Promised:
 *   - a row is in one version at most, whoever commits it, and in exactly one once its caller has an answer;
 *   - a caller whose server goes on gets an answer.
 */
#define NONE 0
#define RETURNED 9
#define APPENDS 2

bool waits[APPENDS + 1];     /* the catalog has the append (of server 1, of server 2) */
byte version[APPENDS + 1];   /* the version that it was committed in; RETURNED: its own server has to commit it */
byte committed_by[APPENDS + 1];
byte turn;                   /* which server has the turn */
bool is_expired;
byte versions;               /* of the table */
byte times_in[APPENDS + 1];  /* in how many versions the row is */

#define may_stop if :: true :: goto stopped fi

inline add_rows(ours, others) {
    versions++;
    if :: ours -> times_in[me]++; assert(times_in[me] == 1) :: else fi;
    if :: others -> times_in[other]++; assert(times_in[other] == 1) :: else fi
}

/* queue_append (store/tables/queued_appends.py) */
inline queue_append() { atomic { waits[me] = true; version[me] = NONE } }

/* claim_turn (store/tables/queued_appends.py): free, or its lease has expired */
inline claim_turn() {
    atomic {
        if
        :: turn == NONE || is_expired -> turn = me; is_expired = false; claimed = true
        :: else -> claimed = false
        fi
    }
}

/* waiting_appends (store/tables/queued_appends.py) */
inline gather() {
    atomic { ours = (waits[me] && version[me] == NONE); others = (waits[other] && version[other] == NONE) }
}

/* mark_appends_committed (store/tables/queued_appends.py): in the transaction that records the version, if all wait */
inline commit_queued() {
#ifdef BROKEN_MARKED_AFTERWARDS
    atomic { add_rows(ours, others); made = true };
#endif
    atomic {
#ifdef BROKEN_MARKED_UNSEEN
        made = true;
#else
        made = (!ours || (waits[me] && version[me] == NONE)) && (!others || (waits[other] && version[other] == NONE));
#endif
        if
        :: made ->
#ifndef BROKEN_MARKED_AFTERWARDS
            add_rows(ours, others);
#endif
            if :: ours -> version[me] = versions; committed_by[me] = me :: else fi;
            if :: others && waits[other] -> version[other] = versions; committed_by[other] = me :: else fi
        :: else
        fi
    }
}

/* return_appends (store/tables/queued_appends.py): after an error the others commit theirs, unless they are committed */
inline return_others() {
    atomic { if :: others && waits[other] && version[other] == NONE -> version[other] = RETURNED :: else fi }
}

/* end_turn (store/tables/queued_appends.py) */
inline end_turn() { atomic { if :: turn == me -> turn = NONE; is_expired = false :: else fi } }

/* _take_turn (tables/rows/shared_appends.py) */
inline take_turn() {
    claim_turn();
    if
    :: claimed ->
        gather();
        may_stop;
        made = false; failed = false;
        if
        :: ours ->
            if
            :: commit_queued()
            :: commit_queued(); failed = true /* it was made, or not, and this server cannot know */
            :: failed = true
            fi
        :: else
        fi;
        may_stop;
        if
        :: failed -> return_others()
        :: !failed && made -> answered = true
        :: else
        fi;
        end_turn()
    :: else
    fi
}

/* withdraw_append (store/tables/queued_appends.py): deletes it and says, in one statement, whether it was committed */
inline withdraw() {
    atomic {
#ifdef BROKEN_WITHDRAWN_BLINDLY
        made = false;
#else
        made = (version[me] != NONE && version[me] != RETURNED);
#endif
        waits[me] = false
    }
}

/* append (tables/rows/shared_appends.py), _commit_group (tables/rows/append_queue.py): alone, if it was not committed */
proctype Server(byte me) {
    byte other = 3 - me, looks;
    bool claimed, ours, others, made, failed, answered;
    queue_append();
    do
    :: !answered && !failed && looks < 2 && version[me] != RETURNED ->
        looks++;
        take_turn();
        if
        :: !answered ->
            atomic {
                answered = (version[me] != NONE && version[me] != RETURNED &&
                            (turn != committed_by[me] || is_expired))
            }
        :: else
        fi
    :: else -> break
    od;
    may_stop;
    if
    :: answered
    :: else ->
        withdraw();
        may_stop;
        if
        :: made -> answered = true
        :: else -> atomic { add_rows(true, false); answered = true }
        fi
    fi;
    assert(times_in[me] == 1);
stopped:
    skip
}

/* No function of ours: the turn's lease ends while its server hangs, which goes on later. */
proctype Time() {
    byte times;
    do
    :: atomic { times < 2 && turn != NONE && !is_expired -> is_expired = true; times++ }
    :: break
    od
}

init { atomic { run Server(1); run Server(2); run Time() } }
